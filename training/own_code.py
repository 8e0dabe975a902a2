"""Code of the user's own that a run is trained with: a function in a file, or in a package that is installed.

It is named as `FILE.py:FUNCTION`, or `PACKAGE.MODULE:FUNCTION`. It is found, hashed and loaded here alone. Invariant:
where it is comes from the user's own configuration or from what he types, and never from a store; and nothing of it is
executed unless its files are, byte for byte, those with which the run was begun.
"""

import ast
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from storage.errors import ConfigurationError, HoldfastError, IncompatibleRunError
from storage.objects.digests import sha256_of_file

SUFFIX, NOTEBOOK_SUFFIX = ".py", ".ipynb"
FORM = "'./my_file.py:build' for the function build of a file, or 'my_package.models:build' for that of a package"
# A package of more files is hardly one that is written for a model.
MOST_FILES = 500
ADVICE = (
    "The run goes on with no other code: restore it as it was, or give another run name to start a new run with what "
    "is there now."
)
# Frames of the user's own that a message has, the innermost last.
MOST_FRAMES = 6


class Pinned(Protocol):
    """What a run keeps of the code: the function's name, and the SHA-256 of each file."""

    @property
    def function(self) -> str: ...

    @property
    def files(self) -> Mapping[str, str]: ...


@dataclass(frozen=True)
class Reference:
    """A function of the user's own, as `field` of the configuration names it."""

    field: str
    place: str
    function: str

    @property
    def is_file(self) -> bool:
        return self.place.endswith(SUFFIX)

    @property
    def path(self) -> Path:
        """Of the file, where it is one."""
        return Path(self.place).expanduser().absolute()

    @property
    def name(self) -> str:
        return f"{self.place}:{self.function}"


def parse_reference(text: str, field: str) -> Reference:
    """What a text of this form names. Raises `ConfigurationError`."""
    place, separator, function = text.rpartition(":")
    is_module = all(part.isidentifier() for part in place.split(".")) and not place.endswith(NOTEBOOK_SUFFIX)
    is_place = place.endswith(SUFFIX) or is_module
    if not separator or not is_place or not function.isidentifier():
        raise ConfigurationError(f"{field} is {text!r}, expected {FORM}")
    if place == "__main__":
        raise ConfigurationError(
            f"{field} is {text!r}: what is defined in a notebook's cells, or in the program that is run, is not there "
            "for the ranks, which are processes of their own. Write it into a file, in a notebook with %%writefile "
            "my_models.py as the first line of its cell, and name it as 'my_models.py:build'"
        )
    return Reference(field, place, function)


def find_files(reference: Reference) -> dict[str, Path]:
    """The files that the code is made of, by their names in messages and in the manifest; nothing is imported.

    Of a file: itself, and the modules and packages beside it that it imports, directly or by one of these. Of a
    package: all files of Python's in the outermost package. Raises `ConfigurationError` where there is none.
    """
    if reference.is_file:
        if not reference.path.is_file():
            raise ConfigurationError(
                f"{reference.field} is {reference.name!r}: there is no file {reference.path}. Expected {FORM}."
            )
        files = _files_beside(reference.path)
    else:
        files = _files_of_package(reference)
    if len(files) > MOST_FILES:
        raise ConfigurationError(
            f"{reference.field} is {reference.name!r}, whose code is {len(files):,} files, expected at most "
            f"{MOST_FILES}: each is hashed, so that a run goes on with the code it was begun with. Name a function in "
            "a file or a package of your own, which imports what it needs of this one."
        )
    return dict(sorted(files.items()))


def hash_files(reference: Reference) -> dict[str, str]:
    """SHA-256 of each file, by its name. Raises `ConfigurationError` where there is none."""
    return _hashes(find_files(reference))


def require_pinned(reference: Reference, pinned: Pinned, advice: str = ADVICE) -> dict[str, Path]:
    """The files, which are those that were pinned. Raises `IncompatibleRunError`, naming those that are not."""
    files = find_files(reference)
    found = _hashes(files)
    names = sorted(found.keys() | pinned.files.keys())
    changed = [name for name in names if found.get(name) != pinned.files.get(name)]
    if changed:
        raise IncompatibleRunError(
            f"The code that {reference.field} names, {reference.name}, is not what the run was begun with: "
            f"{', '.join(map(_described(found, pinned.files), changed))}. {advice}"
        )
    if reference.function != pinned.function:
        raise IncompatibleRunError(
            f"{reference.field} names the function {reference.function!r}, and the run was begun with "
            f"{pinned.function!r}. {advice}"
        )
    return files


def load_function(reference: Reference, pinned: Pinned, advice: str = ADVICE) -> Callable[..., Any]:
    """The function, its module executed. Raises `IncompatibleRunError` as above, and `ConfigurationError`."""
    files = require_pinned(reference, pinned, advice)
    with own_errors(f"{reference.name} could not be imported", files.values()):
        module = _load_file(reference.path) if reference.is_file else importlib.import_module(reference.place)
    function = getattr(module, reference.function, None)
    if not callable(function):
        found = "there is none" if function is None else f"found {type(function).__name__}"
        raise ConfigurationError(
            f"{reference.field} is {reference.name!r}, expected a function {reference.function!r} there: {found}."
        )
    return function  # type: ignore[no-any-return]


@contextmanager
def own_errors(what: str, files: Iterable[Path]) -> Iterator[None]:
    """A block of the user's own code: what it raises becomes a message, with the lines of it that led there."""
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":
            raise  # for which there is a better message
        lines = "".join(f"\n  {line}" for line in _own_lines(error, {str(path) for path in files}))
        raise ConfigurationError(f"{what}: {type(error).__name__}: {error}{lines}") from error


def _own_lines(error: Exception, own: set[str]) -> list[str]:
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename in own:
        return [f"{error.filename}, line {error.lineno}: {(error.text or '').strip()}"]
    found = [frame for frame in frames if frame.filename in own] or frames[-1:]
    return [f"{frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}" for frame in found[-MOST_FRAMES:]]


def _hashes(files: Mapping[str, Path]) -> dict[str, str]:
    return {name: sha256_of_file(path) for name, path in files.items()}


def _load_file(path: Path) -> ModuleType:
    """The module of a file, under a name that no other module has; it finds what lies beside it, after all else."""
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.append(folder)
    importlib.invalidate_caches()
    name = f"own_code_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # by which dataclasses, for one, find their module
    spec.loader.exec_module(module)
    return module


def _files_beside(path: Path) -> dict[str, Path]:
    """The file, and what of its folder it imports."""
    folder, found, waiting = path.parent, {path.name: path}, [path]
    while waiting:
        for name in _imported_names(waiting.pop()):
            for other in _modules_named(folder, name):
                if other.relative_to(folder).as_posix() not in found:
                    found[other.relative_to(folder).as_posix()] = other
                    waiting.append(other)
    return found


def _modules_named(folder: Path, name: str) -> list[Path]:
    package, module = folder / name, folder / f"{name}{SUFFIX}"
    if (package / f"__init__{SUFFIX}").is_file():
        return sorted(package.rglob(f"*{SUFFIX}"))
    return [module] if module.is_file() else []


def _imported_names(path: Path) -> set[str]:
    """The outermost names of what a file imports anywhere. A file that is no Python is its import's matter."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return set()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def _files_of_package(reference: Reference) -> dict[str, Path]:
    top = reference.place.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)  # which imports nothing of a name without a dot
    except (ImportError, ValueError):
        spec = None
    if spec is None or (spec.origin in (None, "built-in", "frozen") and not spec.submodule_search_locations):
        raise ConfigurationError(
            f"{reference.field} is {reference.name!r}: there is no package {top!r} here. Install it where Holdfast is "
            f"installed, or name the file: {FORM}."
        )
    if spec.submodule_search_locations is None:
        path = Path(str(spec.origin))
        return {path.name: path}
    folders = [Path(folder) for folder in spec.submodule_search_locations]
    return {
        f"{top}/{path.relative_to(folder).as_posix()}": path
        for folder in folders
        for path in folder.rglob(f"*{SUFFIX}")
    }


def _described(found: Mapping[str, str], pinned: Mapping[str, str]) -> Callable[[str], str]:
    def describe(name: str) -> str:
        how = "is new" if name not in pinned else "was removed" if name not in found else "was changed"
        return f"{name} {how}"

    return describe
