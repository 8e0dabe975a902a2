"""What the project is made of: its packages and rooms, and which way their imports point."""

import ast
import functools
import importlib.metadata
import re
import sys
import warnings
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("holdfast", "flows", "tasks", "training", "storage")
LAYOUT = (*PACKAGES, "tests", "deployments")

# Each package's own modules, and the packages that it may import.
MAY_IMPORT = {
    "holdfast": {"holdfast", "flows", "tasks", "training", "storage"},
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
    "transformers": {"training"},
    "boto3": {"storage"},
    "botocore": {"storage"},
}
# What can run code when it reads a file.
PICKLERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
COMPARED_WITH_PICKLERS = Path("tests/benchmarks/checkpoints/rank.py")
PICKLING_CALLS = {("torch", "load"), ("torch", "save"), ("np", "load"), ("np", "save")}

# A room is a folder of modules. Package, room, room in a room: no deeper; and no room so long that nobody reads it.
DEEPEST_ROOM = 3
LONGEST_FILE_LINES = 400
FEWEST_MODULES = 3
# Imports the commands by the names of their files, and nothing else: `unit/flows/test_command_files.py`.
FINDS_COMMANDS = Path("flows/cli.py")
COMMANDS = Path("flows/commands")
# Imports what the user names, and nothing else: `unit/training/test_own_module.py`.
IMPORTS_OWN_CODE = Path("training/own_code.py")
ENCODER = Path("training/models/encoder")
NETWORK = Path("training/export/standalone/holdfast_network.py")
# Directly in `tasks/` lies the pipeline, one Prefect task in each file, and these, which all of them share.
SHARED_BY_TASKS = {"background", "retrying", "run_paths", "step", "text"}

LINK = re.compile(r"\]\(([^()\s]+)\)")
TEST_FILE = re.compile(r"`((?:\w+/)+test_\w+\.py)`")
READMES = sorted(
    path.relative_to(ROOT)
    for path in [ROOT / "README.md", *(path for folder in LAYOUT for path in (ROOT / folder).rglob("README.md"))]
)

MODULES = sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
KNOWN_MODULES = set(MODULES)
ROOMS = sorted({module.parent for module in MODULES})
ALL_MODULES = MODULES + sorted(path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*.py"))


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


def test_no_module_imports_itself_round_about() -> None:
    assert find_circle(imports_between_modules()) is None


@pytest.mark.parametrize("folder", ROOMS, ids=Path.as_posix)
def test_no_two_rooms_import_each_other_directly_or_round_about(folder: Path) -> None:
    """What lies in a folder, its rooms as a whole and its modules one by one, can be put into one order."""
    assert find_circle(imports_within(folder, imports_between_modules())) is None


def test_a_circle_of_rooms_would_be_noticed() -> None:
    """No two modules of these import each other, but what is in the one room imports what is in the other."""
    edges = {
        Path("storage/runs/reader.py"): {Path("storage/checkpoints/files.py")},
        Path("storage/checkpoints/files.py"): {Path("storage/layout.py")},
        Path("storage/layout.py"): {Path("storage/runs/names.py")},
        Path("storage/runs/names.py"): set[Path](),
    }
    assert find_circle(edges) is None
    circle = find_circle(imports_within(Path("storage"), edges))
    assert circle is not None
    assert set(circle) == {"runs", "checkpoints", "layout.py"}
    assert Path("storage/objects/keys.py") in imports_between_modules()[Path("storage/objects/local_store.py")]


def test_our_own_encoder_is_asked_through_the_one_seam_for_models() -> None:
    """Another model is a file beside it: nothing else would have to learn of it."""
    importing = {(module, imported) for module, found in imports_between_modules().items() for imported in found}
    inside = {module for module, imported in importing if imported.parent == ENCODER and module.parent != ENCODER}
    assert inside == {ENCODER.parent / "source.py"}
    network = {module for module, imported in importing if imported == NETWORK and module.parent != NETWORK.parent}
    assert network and {module.parent for module in network} == {ENCODER}


def test_rooms_are_at_most_three_folders_deep_and_files_400_lines_long() -> None:
    assert [str(room) for room in ROOMS if len(room.parts) > DEEPEST_ROOM] == []
    lines = {str(module): count_lines(ROOT / module) for module in MODULES}
    assert {module: count for module, count in lines.items() if count > LONGEST_FILE_LINES} == {}


def test_a_room_has_at_least_three_modules_or_is_a_file() -> None:
    sizes = {room: sum(other.parent == room or room in other.parent.parents for other in MODULES) - 1 for room in ROOMS}
    assert {str(room): size for room, size in sizes.items() if size < FEWEST_MODULES} == {}


def test_every_room_says_what_it_owns() -> None:
    described = {path.parent for path in MODULES if path.name == "__init__.py" and ast.get_docstring(parse(path))}
    assert set(ROOMS) - described == set()


def test_what_lies_directly_in_tasks_is_a_prefect_task_or_shared_by_them() -> None:
    modules = {path.stem: parse(path) for path in MODULES if path.parent == Path("tasks") and path.stem != "__init__"}
    tasks = {name for name, tree in modules.items() if any(is_task(node) for node in tree.body)}
    assert {"prepare", "segment", "evaluate"} <= tasks
    assert set(modules) - tasks == SHARED_BY_TASKS


def test_every_import_is_absolute_and_written_down() -> None:
    for module in ALL_MODULES:
        for node in nodes(module):
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"{module} imports relatively"
            is_seen = module in (FINDS_COMMANDS, IMPORTS_OWN_CODE) or called_name(node) not in (
                "__import__",
                "import_module",
            )
            assert is_seen, f"{module} imports what no test can see"


def test_no_file_of_the_flows_has_the_name_of_a_package_or_a_library() -> None:
    taken = {*PACKAGES, "tests", *sys.stdlib_module_names, *importlib.metadata.packages_distributions()}
    stems = {path.stem for path in (ROOT / "flows").glob("*.py")} - {"__init__"}
    assert stems & taken == set()


def test_there_is_no_module_for_things_without_a_place() -> None:
    assert [module for module in ALL_MODULES if {"utils", "util"} & {*module.parts, module.stem}] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_says_what_it_is_for(package: str) -> None:
    silent = [str(module) for module in MODULES if module.parts[0] == package and not ast.get_docstring(parse(module))]
    assert silent == []


@pytest.mark.parametrize("package", [*PACKAGES, "tests"])
def test_what_is_deprecated_is_an_error_in_our_own_modules(package: str) -> None:
    with pytest.raises(DeprecationWarning, match="gone soon"):
        warnings.warn_explicit(
            "gone soon", DeprecationWarning, f"{package}/some.py", 1, module=f"{package}.some.module"
        )
    warnings.warn_explicit("gone soon", DeprecationWarning, "library.py", 1, module=f"{package}_of_a_library.module")


@pytest.mark.parametrize("readme", READMES, ids=Path.as_posix)
def test_every_link_in_a_readme_leads_somewhere_in_the_project(readme: Path) -> None:
    targets = [target.partition("#")[0] for target in LINK.findall((ROOT / readme).read_text(encoding="utf-8"))]
    links = {target for target in targets if target and not target.startswith(("http://", "https://"))}
    assert {link for link in links if not (ROOT / readme.parent / link).exists()} == set()


@pytest.mark.parametrize("readme", READMES, ids=Path.as_posix)
def test_every_file_of_tests_that_a_readme_names_is_there(readme: Path) -> None:
    named = {name.removeprefix("tests/") for name in TEST_FILE.findall((ROOT / readme).read_text(encoding="utf-8"))}
    assert {name for name in named if not (ROOT / "tests" / name).exists()} == set()


def test_no_default_of_a_site_says_how_often_a_flow_or_a_task_is_repeated() -> None:
    for module in MODULES:
        calls = [node for node in nodes(module) if isinstance(node, ast.Call) and called_name(node) in ("flow", "task")]
        for call in calls:
            assert "retries" in {keyword.arg for keyword in call.keywords}, f"{module}:{call.lineno} has no retries"


def test_how_many_processors_there_are_is_asked_in_one_place() -> None:
    asking = ("cpu_count", "process_cpu_count", "sched_getaffinity")
    found = {module for module in ALL_MODULES for node in nodes(module) if called_name(node) in asking}
    assert found == {Path("storage/processors.py")}


def test_nothing_is_pickled() -> None:
    for module in set(ALL_MODULES) - {COMPARED_WITH_PICKLERS}:
        assert not PICKLERS & set(imported_names(module)), f"{module} imports a pickler"
        calls = {dotted_call(node) for node in nodes(module)}
        assert not calls & PICKLING_CALLS, f"{module} reads or writes with a function that pickles"


def imports_of(package: str) -> Iterator[tuple[Path, str]]:
    """Every import in a package, wherever it stands: the module, and the top-level name that is imported."""
    for module in MODULES:
        if module.parts[0] == package:
            yield from ((module, name) for name in imported_names(module))


@functools.cache
def imports_between_modules() -> dict[Path, set[Path]]:
    """Each module with the project's own modules that it imports, wherever in it that stands."""
    edges = {module: set(own_imports(module)) for module in MODULES}
    edges[FINDS_COMMANDS] |= {module for module in MODULES if module.parent == COMMANDS}
    return edges


def own_imports(module: Path) -> Iterator[Path]:
    for node in nodes(module):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name}" for name in names] + [str(node.module)]
        paths = (Path(*name.split(".")).with_suffix(".py") for name in names)
        yield from (path for path in paths if path in KNOWN_MODULES)


def imports_within(folder: Path, edges: dict[Path, set[Path]]) -> dict[str, set[str]]:
    """What lies in `folder`, rooms and modules, each with what beside it its modules import."""
    place = {module: module.relative_to(folder).parts[0] for module in edges if module.is_relative_to(folder)}
    found: dict[str, set[str]] = {name: set() for name in place.values()}
    for module, name in place.items():
        found[name] |= {place[other] for other in edges[module] if other in place} - {name}
    return found


def find_circle(edges: dict[Any, set[Any]]) -> list[Any] | None:
    """Nodes that can be followed back to the first, or None if all can be put into one order."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


def is_task(node: ast.AST) -> bool:
    """A function that Prefect runs and shows as one step."""
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return any(called_name(decorator) in ("task", "step") for decorator in decorators)


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def imported_names(module: Path) -> Iterator[str]:
    for node in nodes(module):
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


@functools.cache
def parse(module: Path) -> ast.Module:
    return ast.parse((ROOT / module).read_text(encoding="utf-8"), filename=str(module))


@functools.cache
def nodes(module: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parse(module)))
