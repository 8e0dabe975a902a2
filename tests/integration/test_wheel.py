"""The wheel that is built from the project: its contents, and the command and the deployments once it is installed.

It is installed as a user's is: into an environment in which no path leads to the project's folder.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.prefect_server import running, running_prefect_server
from tests.helpers.tiny_runs import write_tiny_configuration

ROOT = Path(__file__).parents[2]
NAMES = ("flows", "tasks", "training", "storage")
PACKAGES = ("holdfast_entry", *NAMES)
WATCH_SECONDS = "600"
MODULES = sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: a `build` folder of an earlier day must not get into it, nor one be left here."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in (*PACKAGES, "tests", "deployments"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_has_the_packages_and_nothing_else(contents: dict[str, bytes]) -> None:
    roots = {name.partition("/")[0] for name in contents}
    (metadata,) = [root for root in roots if root.endswith(".dist-info")]
    assert roots - {metadata} == set(PACKAGES)
    assert metadata.startswith("holdfast-")


def test_the_wheel_has_every_module_and_every_template(contents: dict[str, bytes]) -> None:
    wanted = MODULES + [path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.jinja")]
    assert "tasks/reports/run_page.html.jinja" in {path.as_posix() for path in wanted}
    packed = {name: data for name, data in contents.items() if ".dist-info/" not in name}
    assert packed == {path.as_posix(): (ROOT / path).read_bytes() for path in wanted}


def test_the_installed_wheel_has_the_command(installation: Path, tmp_path: Path) -> None:
    made = holdfast(installation, tmp_path, "corpus", "corpus", "--job", "policy", "--rows", "8")
    assert (made.returncode, made.stderr) == (0, "")
    assert len(list((tmp_path / "corpus").glob("*.parquet"))) == 4


@pytest.mark.parametrize("python_path", [None, "."], ids=["", "PYTHONPATH=."])
def test_the_command_works_in_a_folder_with_packages_of_our_names(
    installation: Path, own_packages: Path, python_path: str | None
) -> None:
    version = holdfast(installation, own_packages, "--version", python_path=python_path)
    assert version.stdout.startswith("holdfast 0."), version.stderr
    made = holdfast(
        installation, own_packages, "corpus", "corpus", "--job", "policy", "--rows", "8", python_path=python_path
    )
    assert (made.returncode, made.stderr) == (0, "")
    status = holdfast(installation, own_packages, "status", "nowhere", python_path=python_path)
    assert status.returncode == 2
    assert status.stderr.startswith("Error: ")


@pytest.mark.server
def test_the_deployments_work_in_a_folder_with_packages_of_our_names(
    installation: Path, own_packages: Path, tmp_path: Path
) -> None:
    write_parquet(own_packages / "data" / "part-0.parquet", text_columns(60))
    store = LocalStore(own_packages / "store")
    configuration = write_tiny_configuration(own_packages, "tiny", "store", Path("data"))
    # With `-m` the current folder comes first from the beginning: no entry script hides it.
    prefect = [str(installation / "python"), "-m", "prefect", "--no-prompt"]
    home = tmp_path / "prefect"
    home.mkdir()
    with running_prefect_server(home) as server:
        environment = without_python_path(server) | {"PREFECT_WORKER_QUERY_SECONDS": "1"}

        def call(*arguments: str) -> "subprocess.CompletedProcess[str]":
            command = [*prefect, *arguments]
            return subprocess.run(command, cwd=own_packages, env=environment, capture_output=True, text=True)

        assert call("work-pool", "create", "holdfast", "--type", "process").returncode == 0
        deployed = call("deploy", "--all", "--prefect-file", str(ROOT / "deployments/prefect.yaml"))
        assert deployed.returncode == 0, deployed.stdout + deployed.stderr
        log = tmp_path / "worker.log"
        with running([*prefect, "worker", "start", "--pool", "holdfast"], environment, log, own_packages):
            parameters = ("--param", f"configuration={configuration.name}", "--watch", "--watch-timeout", WATCH_SECONDS)
            trained = call("deployment", "run", "scheduled/train", *parameters)
        assert trained.returncode == 0, trained.stdout + trained.stderr + log.read_text()
    assert Manifest(store, "tiny").load_head().state.is_complete


def test_a_package_of_our_names_that_was_imported_before_is_one_clear_error(
    installation: Path, own_packages: Path
) -> None:
    code = "import tasks, holdfast_entry.command"
    refused = subprocess.run(
        [str(installation / "python"), "-c", code], cwd=own_packages, env=without_python_path(os.environ),
        capture_output=True, text=True,
    )  # fmt: skip
    assert refused.returncode == 1
    error = refused.stderr.splitlines()[-1]
    assert error.startswith("ImportError: Expected ")
    assert f"found <module 'tasks' from '{own_packages}/tasks/__init__.py'>" in error


@pytest.fixture(scope="module")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment with the wheel, and with the libraries of this one."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--quiet", str(wheel)], check=True)
    site_packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    # A folder named here is searched for packages alone: what makes this project editable in it has no effect.
    (site_packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


@pytest.fixture
def own_packages(tmp_path: Path) -> Path:
    """A user's folder, which has something else under each of our names."""
    folder = tmp_path / "own"
    for name in NAMES[:-1]:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("OWNER = 'somebody else'\n")
    (folder / f"{NAMES[-1]}.py").write_text("OWNER = 'somebody else'\n")
    return folder


def holdfast(
    installation: Path, folder: Path, *arguments: str, python_path: str | None = None
) -> "subprocess.CompletedProcess[str]":
    """The installed command, in a folder that is not the project's."""
    environment = without_python_path(os.environ) | ({"PYTHONPATH": python_path} if python_path else {})
    command = [str(installation / "holdfast"), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def without_python_path(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
