"""Relative paths in a configuration: those in the file are relative to the file, those typed are relative to where.

Invariant: the same file names the same store, source and scratch folder in whatever folder a command is started.
"""

import copy
from pathlib import Path
from typing import Any

from storage.errors import ConfigurationError
from storage.objects.addresses import RUNS_FOLDER, find_scheme

PATH_KEYS = (
    ("store",),
    ("scratch",),
    ("data", "source"),
    ("data", "expectations"),
    ("data", "split", "validation_source"),
    ("data", "split", "test_source"),
    ("train", "start_from"),
    ("notices", "file"),
)


def absolute_paths(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A copy of a configuration's values in which relative paths are taken from `folder`; nothing else is changed."""
    changed = copy.deepcopy(values)
    for *sections, name in PATH_KEYS:
        section: Any = changed
        for key in sections:
            section = section.get(key) if isinstance(section, dict) else None
        if isinstance(section, dict) and isinstance(section.get(name), str):
            section[name] = absolute_path(section[name], folder)
    return changed


def absolute_path(text: str, folder: Path) -> str:
    """A path as it stands in a configuration, taken from `folder` if it is relative."""
    if not _is_relative(text):
        return text
    path = Path(text)
    while path.parts[:1] == ("..",):
        # As the system reads it, also where the folder is behind a symbolic link.
        folder, path = folder.resolve().parent, Path(*path.parts[1:])
    return str(folder.absolute() / path)


def require_not_elsewhere(text: Any, store: Any, run: Any) -> None:
    """Refuse a file that would begin its run a second time, because its relative store was once taken from here.

    `text` is the store as the file has it, `store` where it is now. Raises `ConfigurationError`.
    """
    if not (isinstance(text, str) and isinstance(store, str) and isinstance(run, str)) or not _is_relative(text):
        return
    here = Path(absolute_path(text, Path.cwd()))
    try:
        is_here_alone = (here / RUNS_FOLDER / run).is_dir() and not (Path(store) / RUNS_FOLDER / run).exists()
    except OSError:
        return  # what cannot be seen here was not written by this user; what is wrong with the store is said later
    if is_here_alone:
        raise ConfigurationError(
            f"store = {text!r} is relative to the configuration's folder: {store}. There is no run {run!r} there, but "
            f"there is one in {here}, where earlier versions of Holdfast put it from this folder. To go on with that "
            f"run, set store = {str(here)!r}. To begin a new one, give it another name."
        )


def _is_relative(text: str) -> bool:
    return bool(text) and not text.startswith(("/", "~")) and find_scheme(text) is None
