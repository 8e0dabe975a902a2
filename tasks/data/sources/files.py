"""The user's files: which ones they are, on this machine or in a bucket.

Invariant: what a source names depends on what is there, not on the order in which it is listed.
"""

import glob
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from storage.errors import ConfigurationError
from storage.objects.addresses import path_of
from storage.objects.s3.address import SCHEME as S3_SCHEME
from storage.objects.s3.address import SOURCE_SETTING, without_secrets
from tasks.data.sources.formats import A_SOURCE, SUFFIXES, is_in_source, require_one_format
from tasks.data.sources.source_file import SourceFile, local_file


def find_files(source: str, setting: str = SOURCE_SETTING) -> list[SourceFile]:
    """The files a source names, sorted by name: one file, a folder's files of a known format, or a glob's matches.

    `setting` has the source, and is named in messages.
    What exists is taken as it is, so a folder may have `[` or `*` in its name. Raises `ConfigurationError` if there
    are none, or files of more than one format; `StoreError` if a bucket cannot be listed.
    """
    if not source:
        raise ConfigurationError(f"{setting} is not set. Set it to a {A_SOURCE}.")
    files: Sequence[SourceFile]
    if source.startswith(f"{S3_SCHEME}://"):
        # boto3 takes longer to import than a mistake in a file of this machine takes to be found.
        from tasks.data.sources.bucket import find_in_bucket

        files = find_in_bucket(source, setting)
    elif "://" in source:
        shown = without_secrets(source)
        raise ConfigurationError(f"{setting} must be a {A_SOURCE}, found {shown!r}. Copy the files to one of these.")
    else:
        files = _find_on_this_machine(source, setting)
    require_one_format(setting, source, sorted(file.name for file in files))
    return sorted(files, key=lambda file: file.name)


def _find_on_this_machine(source: str, setting: str) -> Sequence[SourceFile]:
    path = path_of(source).absolute()
    if path.is_file():
        return [local_file(path, path.name)]
    folder, paths = (path, _data_in(path)) if path.is_dir() else _matches(path)
    if not paths:
        raise ConfigurationError(_nothing_found(setting, source, path))
    return [local_file(found, found.relative_to(folder).as_posix()) for found in paths]


def _data_in(folder: Path) -> list[Path]:
    """All files of a known format below."""
    return [path for path in folder.rglob("*") if is_in_source(path.relative_to(folder).as_posix()) and path.is_file()]


def _matches(pattern: Path) -> tuple[Path, list[Path]]:
    """The folder above the first part with a wildcard, and the files that match."""
    plain = [not glob.has_magic(part) for part in pattern.parts]
    if all(plain):
        return pattern.parent, []
    folder = Path(*pattern.parts[: plain.index(False)])
    # ** as in a shell; where there are two of them, some files would be found twice.
    found = dict.fromkeys(map(Path, glob.iglob(str(pattern), recursive=True)))  # noqa: PTH207
    return folder, [path for path in found if path.is_file()]


def _nothing_found(setting: str, source: str, path: Path) -> str:
    if path.is_dir():
        return (
            f"{setting}: the folder {path} has no *.parquet files, nor others of a known format "
            f"({', '.join(SUFFIXES)}). Name the folder, file or glob that has them."
        )
    if glob.has_magic(source):
        return f"{setting}: no file matches {path}. Correct the pattern; ** also looks into folders below."
    siblings = [found.name for found in path.parent.iterdir()] if path.parent.is_dir() else []
    close = get_close_matches(path.name, siblings, n=3)
    hint = f" There is {', '.join(close)}." if close else ""
    return f"{setting}: {path} does not exist.{hint} Set {setting} to a {A_SOURCE}."
