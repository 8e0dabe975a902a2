"""The wheel that is built from the project: its contents, and the command once it is installed.

It is installed as a user's is: into an environment in which no path leads to the project's folder. The worker of
`test_deployments.py` runs from such an environment too.
"""

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.helpers.commands import ROOT
from tests.helpers.wheels import (
    PACKAGES,
    Installed,
    require_what_pods_need,
    without_python_path,
    write_own_packages,
)

MODULES = sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@pytest.fixture(scope="module")
def contents(installed: Installed) -> dict[str, bytes]:
    with zipfile.ZipFile(installed.wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_has_the_packages_and_nothing_else(contents: dict[str, bytes]) -> None:
    roots = {name.partition("/")[0] for name in contents}
    (metadata,) = [root for root in roots if root.endswith(".dist-info")]
    assert roots - {metadata} == set(PACKAGES)
    assert metadata.startswith("holdfast-")


def test_the_wheel_has_every_module_and_every_template(contents: dict[str, bytes]) -> None:
    data = [path for package in PACKAGES for kind in ("*.jinja", "py.typed") for path in (ROOT / package).rglob(kind)]
    wanted = MODULES + [path.relative_to(ROOT) for path in data]
    assert {"tasks/reporting/run_page.html.jinja", "holdfast/py.typed"} <= {path.as_posix() for path in wanted}
    packed = {name: content for name, content in contents.items() if ".dist-info/" not in name}
    assert packed == {path.as_posix(): (ROOT / path).read_bytes() for path in wanted}


@pytest.mark.parametrize("python_path", [None, "."], ids=["", "PYTHONPATH=."])
def test_the_installed_command_works_in_a_folder_with_packages_of_our_names(
    installation: Path, own_packages: Path, python_path: str | None
) -> None:
    version = holdfast(installation, own_packages, "--version", python_path=python_path)
    assert version.stdout.startswith("holdfast 0."), version.stderr
    made = holdfast(
        installation, own_packages, "corpus", "corpus", "--job", "policy", "--rows", "8", python_path=python_path
    )
    assert (made.returncode, made.stderr) == (0, "")
    assert len(list((own_packages / "corpus").glob("*.parquet"))) == 4
    status = holdfast(installation, own_packages, "status", "nowhere", python_path=python_path)
    assert status.returncode == 2
    assert status.stderr.startswith("Error: ")


def test_a_package_of_our_names_that_was_imported_before_is_one_clear_error(
    installation: Path, own_packages: Path
) -> None:
    code = "import tasks, holdfast; print(holdfast.HoldfastError.__name__); import holdfast.command"
    refused = subprocess.run(
        [str(installation / "python"), "-c", code], cwd=own_packages, env=without_python_path(os.environ),
        capture_output=True, text=True,
    )  # fmt: skip
    assert (refused.returncode, refused.stdout) == (1, "HoldfastError\n")
    error = refused.stderr.splitlines()[-1]
    assert error.startswith("ImportError: Expected ")
    assert f"found <module 'tasks' from '{own_packages}/tasks/__init__.py'>" in error


def test_what_pods_run_is_in_the_wheel(installation: Path, tmp_path: Path) -> None:
    require_what_pods_need(installation / "python", tmp_path)


@pytest.fixture(scope="module")
def installation(installed: Installed) -> Path:
    return installed.programs


@pytest.fixture
def own_packages(tmp_path: Path) -> Path:
    """A user's folder, which has something else under each of our names."""
    folder = tmp_path / "own"
    write_own_packages(folder)
    return folder


def holdfast(
    installation: Path, folder: Path, *arguments: str, python_path: str | None = None
) -> "subprocess.CompletedProcess[str]":
    """The installed command, in a folder that is not the project's."""
    environment = without_python_path(os.environ) | ({"PYTHONPATH": python_path} if python_path else {})
    command = [str(installation / "holdfast"), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
