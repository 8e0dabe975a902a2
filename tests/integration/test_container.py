"""The image that the Containerfile builds, without a builder of images: its own lines, run in empty environments.

That what pods run is in the wheel, with the libraries of the tests, is in `test_wheel.py`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.helpers.commands import ROOT
from tests.helpers.wheels import require_what_pods_need, without_python_path

IMAGE = re.compile(r"python:(\d+\.\d+)-slim")
PIP = "python -m pip install"


@dataclass
class Stage:
    """One `FROM` with what follows it."""

    image: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def values(self, instruction: str) -> list[str]:
        return [value for name, value in self.instructions if name == instruction]


def read_stages() -> list[Stage]:
    text = (ROOT / "Containerfile").read_text().replace("\\\n", "")
    stages: list[Stage] = []
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "FROM":
            stages.append(Stage(value))
        elif name and not name.startswith("#"):
            stages[-1].instructions.append((name, value.strip()))
    return stages


def copy_sources(stage: Stage, folder: Path) -> None:
    """What its COPY lines bring from the repository."""
    for line in stage.values("COPY"):
        *sources, target = line.split()
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, folder / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, folder / target)


def run(lines: list[str], environment: Path, folder: Path) -> None:
    """Lines of a stage, with the programs of a virtual environment for those of its image."""
    path = {"PATH": f"{environment / 'bin'}:{os.environ['PATH']}"}
    for line in lines:
        done = subprocess.run(
            ["sh", "-c", line], cwd=folder, env=without_python_path(os.environ) | path, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def new_environment(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    return folder


def extras_of(stage: Stage) -> set[str]:
    """Of the wheel, as it is installed."""
    (line,) = (line for line in stage.values("RUN") if line.startswith(PIP))
    found = re.search(r"\.whl\)\[([\w,-]+)\]", line)
    assert found is not None
    return set(found[1].split(","))


def test_the_image_has_the_python_that_the_project_is_tested_with() -> None:
    setup = re.search(r"^PYTHON \?= python(.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert setup is not None
    assert {IMAGE.search(stage.image)[1] for stage in read_stages()} == {setup[1]}  # type: ignore[index]


def test_the_image_has_every_package_and_a_user_without_rights() -> None:
    build, image = read_stages()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    copied = {source for line in build.values("COPY") for source in line.split()[:-1]}
    assert packages <= copied
    assert all((ROOT / source).exists() for source in copied)
    assert int(image.values("USER")[-1]) > 0
    assert json.loads(image.values("ENTRYPOINT")[-1]) == ["holdfast"]


def test_the_extras_that_the_image_installs_are_the_projects_and_bring_the_client() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = extras_of(read_stages()[1])
    assert wanted <= set(extras)
    assert any(requirement.startswith("kubernetes") for extra in wanted for requirement in extras[extra])


@pytest.mark.slow
def test_the_lines_of_the_containerfile_make_an_environment_that_has_what_pods_need(tmp_path: Path) -> None:
    """In two empty environments, with whatever index pip is configured for."""
    build, image = read_stages()
    source, install = tmp_path / "source", tmp_path / "install"
    for folder in (source, install):
        folder.mkdir()
    copy_sources(build, source)
    run(build.values("RUN"), new_environment(tmp_path / "build-environment"), source)
    (copied,) = image.values("COPY")
    assert copied == "--from=build /source/constraints.txt /source/dist/ ./"
    for path in (source / "constraints.txt", *(source / "dist").iterdir()):
        shutil.copy(path, install)
    environment = new_environment(tmp_path / "environment")
    run([line for line in image.values("RUN") if line.startswith(PIP)], environment, install)
    require_what_pods_need(environment / "bin" / "python", tmp_path)
