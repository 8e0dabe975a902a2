"""The user's files: which ones they are, on this machine or in a bucket.

Invariant: what a source names depends on what is there, not on the order in which it is listed; and what is beside its
files and is not one of them is known by name.
"""

import glob
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from storage.errors import ConfigurationError
from storage.lazy_imports import lazy_imports
from storage.objects.addresses import path_of
from storage.objects.s3.address import SCHEME as S3_SCHEME
from storage.objects.s3.address import SOURCE_SETTING, without_secrets
from tasks.data.sources.formats import A_SOURCE, SUFFIXES, is_in_source, is_left_aside, require_one_format
from tasks.data.sources.patterns import is_match, may_lead_to_match
from tasks.data.sources.source_file import SourceFile, local_file
from tasks.data.sources.walk import cannot_look, describe_link_to_nothing, walk

# boto3 takes longer to import than a mistake in a file of this machine takes to be found.
with lazy_imports():
    import tasks.data.sources.bucket as bucket

NUM_NAMES_SHOWN = 5


class Listed(NamedTuple):
    """The files that a source names, sorted by name; and the names of what is beside them and is not taken."""

    files: list[SourceFile]
    left_out: list[str]


def find_files(source: str, setting: str = SOURCE_SETTING) -> list[SourceFile]:
    """The files of `list_files`."""
    return list_files(source, setting).files


def list_files(source: str, setting: str = SOURCE_SETTING) -> Listed:
    """What a source names: one file, a folder's files of a known format, or a glob's matches.

    `setting` has the source, and is named in messages.
    What exists is taken as it is, so a folder may have `[` or `*` in its name. Raises `ConfigurationError` if there
    are none, if files have more than one format, or if something cannot be seen; `StoreError` if a bucket cannot be
    listed.
    """
    if not source:
        raise ConfigurationError(f"{setting} is not set. Set it to a {A_SOURCE}.")
    files: Sequence[SourceFile]
    if source.startswith(f"{S3_SCHEME}://"):
        files, left_out = bucket.find_in_bucket(source, setting)
    elif "://" in source:
        shown = without_secrets(source)
        raise ConfigurationError(f"{setting} must be a {A_SOURCE}, found {shown!r}. Copy the files to one of these.")
    else:
        files, left_out = _find_on_this_machine(source, setting)
    require_one_format(setting, source, sorted(file.name for file in files))
    return Listed(sorted(files, key=lambda file: file.name), sorted(left_out))


def describe_left_out(names: Sequence[str]) -> str:
    """Words about the names of what a source leaves out."""
    shown = ", ".join(names[:NUM_NAMES_SHOWN])
    return shown if len(names) <= NUM_NAMES_SHOWN else f"{shown} and {len(names) - NUM_NAMES_SHOWN:,} more"


def _find_on_this_machine(source: str, setting: str) -> tuple[Sequence[SourceFile], list[str]]:
    path = path_of(source).absolute()
    kind = _kind_of(path, setting)
    if kind is not None and not stat.S_ISDIR(kind):
        return [local_file(path, path.name)], []
    folder, names, left_out = _in_folder(path, setting) if kind is not None else _matches(path, setting)
    if not names:
        raise ConfigurationError(_nothing_found(setting, source, path, is_folder=kind is not None))
    return [local_file(folder / name, name) for name in names], left_out


def _kind_of(path: Path, setting: str) -> int | None:
    """The file's mode; None where nothing is there. "Not there" and "cannot be seen" are different answers."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise cannot_look(setting, str(path), error) from error


def _in_folder(folder: Path, setting: str) -> tuple[Path, list[str], list[str]]:
    """The folder's files of a known format, and what is left out."""

    def matters(name: str) -> bool:
        return not is_left_aside(name)

    found = walk(folder, setting, matters, matters)
    return folder, *_sort_out(found.files, is_in_source, found.not_entered)


def _matches(pattern: Path, setting: str) -> tuple[Path, list[str], list[str]]:
    """The folder above the first part with a wildcard, the files in it that match, and those beside them that do not.

    Folders in which nothing can match are not looked into, and are none that something is left out of.
    """
    plain = [not glob.has_magic(part) for part in pattern.parts]
    if all(plain):
        return pattern.parent, [], []
    first = plain.index(False)
    folder, parts = Path(*pattern.parts[:first]), pattern.parts[first:]
    kind = _kind_of(folder, setting)
    if kind is None or not stat.S_ISDIR(kind):
        return folder, [], []

    def is_entered(name: str) -> bool:
        return may_lead_to_match(name.split("/"), parts)

    def matters(name: str) -> bool:
        return is_match(name.split("/"), parts) or is_entered(name)

    found = walk(folder, setting, is_entered, matters)
    return folder, *_sort_out(found.files, lambda name: is_match(name.split("/"), parts), [])


def _sort_out(names: Iterable[str], is_taken: Callable[[str], bool], others: list[str]) -> tuple[list[str], list[str]]:
    taken: list[str] = []
    left_out = list(others)
    for name in names:
        (taken if is_taken(name) else left_out).append(name)
    return taken, left_out


def _nothing_found(setting: str, source: str, path: Path, is_folder: bool) -> str:
    if is_folder:
        return (
            f"{setting}: the folder {path} has no *.parquet files, nor others of a known format "
            f"({', '.join(SUFFIXES)}). Name the folder, file or glob that has them."
        )
    of_link = describe_link_to_nothing(str(path))
    if of_link is not None:
        return f"{setting}: {of_link}"
    if glob.has_magic(source):
        return f"{setting}: no file matches {path}. Correct the pattern; ** also looks into folders below."
    close = get_close_matches(path.name, _names_in(path.parent), n=3)
    hint = f" There is {', '.join(close)}." if close else ""
    return f"{setting}: {path} does not exist.{hint} Set {setting} to a {A_SOURCE}."


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []
