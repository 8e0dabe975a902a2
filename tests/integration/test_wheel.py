"""The wheel that is built from the project: its contents, and its command once it is installed."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("flows", "tasks", "training", "storage")
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


def test_the_wheel_has_the_four_packages_and_nothing_else(contents: dict[str, bytes]) -> None:
    roots = {name.partition("/")[0] for name in contents}
    (metadata,) = [root for root in roots if root.endswith(".dist-info")]
    assert roots - {metadata} == set(PACKAGES)
    assert metadata.startswith("holdfast-")


def test_the_wheel_has_every_module_and_every_template(contents: dict[str, bytes]) -> None:
    wanted = MODULES + [path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.jinja")]
    assert "tasks/reports/run_page.html.jinja" in {path.as_posix() for path in wanted}
    packed = {name: data for name, data in contents.items() if ".dist-info/" not in name}
    assert packed == {path.as_posix(): (ROOT / path).read_bytes() for path in wanted}


def test_the_installed_wheel_has_the_command(wheel: Path, contents: dict[str, bytes], tmp_path: Path) -> None:
    (entry_points,) = [data.decode() for name, data in contents.items() if name.endswith("/entry_points.txt")]
    assert "holdfast = flows.cli:main" in entry_points
    installed, corpus = tmp_path / "installed", tmp_path / "corpus"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*pip, "--target", str(installed), str(wheel)], check=True)
    # From a folder that is not the project's, with nothing of the project's on the path.
    made = subprocess.run(
        [str(installed / "bin" / "holdfast"), "corpus", str(corpus), "--job", "policy", "--rows", "8"],
        env={"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (made.returncode, made.stderr) == (0, "")
    assert len(list(corpus.glob("*.parquet"))) == 4
