"""All files of a data set's source: those of `data.source`, and those of the splits that have a source of their own.

Invariant: the files of `data.source` come first, with the names that they have alone, so numbers and ids of their rows
do not depend on the others; those of a split begin with the name of its setting. No file is in two sources.
"""

from collections.abc import Sequence
from dataclasses import replace

from storage.datasets import SPLITS
from storage.errors import ConfigurationError
from storage.objects.s3.address import SOURCE_SETTING
from tasks.configuration.run import DataConfig
from tasks.data.sources.files import Listed, describe_left_out, list_files
from tasks.data.sources.formats import format_of
from tasks.data.sources.source_file import SourceFile
from tasks.text import count_of


def find_source(config: DataConfig) -> list[SourceFile]:
    """The files of `list_source`."""
    return list_source(config).files


def list_source(config: DataConfig, setting: str = SOURCE_SETTING) -> Listed:
    """The files of all sources, each with the split that it is for, if it is for one; and what these leave out.

    `setting` is what a person has set data.source by, for messages.
    Raises `ConfigurationError` if a source names none, if they have more than one format or one of them is in two
    sources; `StoreError` if a bucket cannot be listed.
    """
    files, left_out = list_files(config.source, setting)
    for index, split in enumerate(SPLITS):
        source = config.split.source_of(split)
        if source is not None:
            own = _list_split(index, source)
            files, left_out = [*files, *own.files], [*left_out, *own.left_out]
    _require_one_format(files)
    _require_one_source(files)
    return Listed(files, left_out)


def describe_source(files: Sequence[SourceFile], num_rows: int, left_out: Sequence[str]) -> str:
    """What is prepared, and what is beside it and is not: in one sentence, so that a person sees what is missing."""
    summary = f"The source has {count_of(len(files), 'file')} with {num_rows:,} rows"
    return f"{summary}; left out: {describe_left_out(left_out)}." if left_out else f"{summary}; no file is left out."


def _list_split(index: int, source: str) -> Listed:
    name = f"{SPLITS[index]}_source"
    files, left_out = list_files(source, f"data.split.{name}")
    of_split = [replace(file, name=f"{name}/{file.name}", split=index) for file in files]
    return Listed(of_split, [f"{name}/{found}" for found in left_out])


def _require_one_format(files: list[SourceFile]) -> None:
    """Each source has one format: so the first file of each decides."""
    first = files[0]
    other = next((file for file in files if format_of(file.name) != format_of(first.name)), None)
    if other is not None:
        raise ConfigurationError(
            f"{other.setting}: all sources must have one format, but {other.name} is {format_of(other.name)} and "
            f"{first.name}, of {first.setting}, is {format_of(first.name)}. Convert the files of one of them."
        )


def _require_one_source(files: list[SourceFile]) -> None:
    """Rows that are trained on and measured too would make every metric better than the model is."""
    known: dict[str, SourceFile] = {}
    for file in files:
        other = known.setdefault(file.location, file)
        if other is not file:
            raise ConfigurationError(
                f"{file.location} is in two sources: {other.setting} and {file.setting}. Each file must be in one: set "
                "them to folders, files or globs that have no file in common."
            )
