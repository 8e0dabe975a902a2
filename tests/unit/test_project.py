"""What the project is made of: the wheel that is built from it, and which way its imports point."""

import ast
import importlib.metadata
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("flows", "tasks", "training", "storage")
LAYOUT = (*PACKAGES, "tests", "deployments")

# Each package's own modules, and the packages that it may import.
MAY_IMPORT = {
    "flows": {"flows", "tasks", "training", "storage"},
    "tasks": {"tasks", "training", "storage"},
    "training": {"training", "storage"},
    "storage": {"storage"},
}
# Libraries that decide what a package can be run without.
ALONE_IN = {
    "prefect": {"flows", "tasks"},
    "torch": {"training"},
    "torchmetrics": {"training"},
    "boto3": {"storage"},
    "botocore": {"storage"},
}
# What can run code when it reads a file.
PICKLERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
COMPARED_WITH_PICKLERS = Path("tests/benchmarks/bench_checkpoint.py")
PICKLING_CALLS = {("torch", "load"), ("torch", "save"), ("np", "load"), ("np", "save")}

MODULES = sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
ALL_MODULES = MODULES + sorted(path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*.py"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: a `build` folder of an earlier day must not get into it, nor one be left here."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in LAYOUT:
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


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package: str) -> None:
    found = {
        (str(module), name)
        for module, name in imports_of(package)
        if name in LAYOUT and name not in MAY_IMPORT[package]
    }
    assert found == set()


@pytest.mark.parametrize("library", ALONE_IN)
def test_a_library_is_imported_only_where_it_belongs(library: str) -> None:
    others = [package for package in PACKAGES if package not in ALONE_IN[library]]
    assert {str(module) for package in others for module, name in imports_of(package) if name == library} == set()


def test_the_direction_of_imports_would_be_noticed() -> None:
    """The tests above look at something: what is allowed does occur."""
    assert {"tasks", "training", "storage", "prefect"} <= {name for _, name in imports_of("flows")}
    assert {"training", "storage", "prefect"} <= {name for _, name in imports_of("tasks")}
    assert {"storage", "torch"} <= {name for _, name in imports_of("training")}


def test_every_import_is_absolute_and_written_down() -> None:
    for module in ALL_MODULES:
        for node in ast.walk(parse(module)):
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"{module} imports relatively"
            assert called_name(node) not in ("__import__", "import_module"), f"{module} imports what no test can see"


def test_no_file_of_the_flows_has_the_name_of_a_package_or_a_library() -> None:
    taken = {*LAYOUT, *sys.stdlib_module_names, *importlib.metadata.packages_distributions()}
    stems = {path.stem for path in (ROOT / "flows").glob("*.py")} - {"__init__"}
    assert stems & taken == set()


def test_there_is_no_module_for_things_without_a_place() -> None:
    assert [module for module in ALL_MODULES if {"utils", "util"} & {*module.parts, module.stem}] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_says_what_it_is_for(package: str) -> None:
    silent = [str(module) for module in MODULES if module.parts[0] == package and not ast.get_docstring(parse(module))]
    assert silent == []


def test_nothing_is_pickled() -> None:
    for module in set(ALL_MODULES) - {COMPARED_WITH_PICKLERS}:
        tree = parse(module)
        assert not PICKLERS & set(imported_names(tree)), f"{module} imports a pickler"
        calls = {dotted_call(node) for node in ast.walk(tree)}
        assert not calls & PICKLING_CALLS, f"{module} reads or writes with a function that pickles"


def imports_of(package: str) -> Iterator[tuple[Path, str]]:
    """Every import in a package, wherever it stands: the module, and the top-level name that is imported."""
    for module in MODULES:
        if module.parts[0] == package:
            yield from ((module, name) for name in imported_names(parse(module)))


def imported_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def called_name(node: ast.AST) -> str | None:
    """The last part of the name of the function that is called here, if one is."""
    if not isinstance(node, ast.Call):
        return None
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)


def dotted_call(node: ast.AST) -> tuple[str, str] | None:
    """A call of `module.function`, as these two names."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return None
    owner = node.func.value
    return (owner.id, node.func.attr) if isinstance(owner, ast.Name) else None


def parse(module: Path) -> ast.Module:
    return ast.parse((ROOT / module).read_text(encoding="utf-8"), filename=str(module))
