"""Relative paths in a configuration: those in the file are relative to the file, those typed are relative to where.

Invariant: the same file names the same store, source and scratch folder in whatever folder a command is started.
"""

import copy
from pathlib import Path
from typing import Any

from storage.objects.addresses import find_scheme
from training.own_code import SUFFIX

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
# A folder, or a name on a hub, which looks like a relative path: it is a folder if it says so, or if it is there.
FOLDER_OR_NAME = ("model", "name")
# A file, a colon, and a function in it; or a module of a package, which is no path.
FUNCTIONS = (("model", "factory"), ("train", "optimizer_factory"))


def absolute_paths(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A copy of a configuration's values in which relative paths are taken from `folder`; nothing else is changed."""
    changed = copy.deepcopy(values)
    for keys in (*PATH_KEYS, FOLDER_OR_NAME, *FUNCTIONS):
        *sections, name = keys
        section: Any = changed
        for key in sections:
            section = section.get(key) if isinstance(section, dict) else None
        found = section.get(name) if isinstance(section, dict) else None
        if not isinstance(found, str):
            continue
        if keys in FUNCTIONS:
            section[name] = absolute_function(found, folder)
        elif keys != FOLDER_OR_NAME or _is_folder(found, folder):
            section[name] = absolute_path(found, folder)
    return changed


def _is_folder(text: str, folder: Path) -> bool:
    return text.startswith(".") or (folder / text).is_dir()


def absolute_function(text: str, folder: Path) -> str:
    """A function of the user's own as it stands in a configuration, with its file's path taken from `folder`."""
    place, colon, function = text.rpartition(":")
    return f"{absolute_path(place, folder)}{colon}{function}" if place.endswith(SUFFIX) else text


def absolute_path(text: str, folder: Path) -> str:
    """A path as it stands in a configuration, taken from `folder` if it is relative."""
    if not _is_relative(text):
        return text
    path = Path(text)
    while path.parts[:1] == ("..",):
        # As the system reads it, also where the folder is behind a symbolic link.
        folder, path = folder.resolve().parent, Path(*path.parts[1:])
    return str(folder.absolute() / path)


def _is_relative(text: str) -> bool:
    return bool(text) and not text.startswith(("/", "~")) and find_scheme(text) is None
