"""Files with the same bytes: of two sources, in one source, and in a table that a model is measured by.

Invariant: rows that are trained on and measured too make every metric better than the model is: it is never silent.
"""

from collections.abc import Sequence

from storage.datasets import SPLITS, DatasetManifest
from storage.errors import ConfigurationError
from tasks.console.announce import warn
from tasks.data.sources.source_file import SourceFile


def require_no_copies(files: Sequence[SourceFile], fingerprints: Sequence[str], num_rows: Sequence[int] | None) -> None:
    """Raise `ConfigurationError` if files of two sources have the same bytes; warn of files of one source that do.

    `num_rows` are those of the files, where they are known: files without rows may be alike.
    """
    first: dict[str, SourceFile] = {}
    twice: list[tuple[SourceFile, SourceFile]] = []
    for index, (file, sha256) in enumerate(zip(files, fingerprints, strict=True)):
        if num_rows is not None and num_rows[index] == 0:
            continue
        other = first.setdefault(sha256, file)
        if other.setting != file.setting:
            raise ConfigurationError(
                f"{other.location}, of {other.setting}, and {file.location}, of {file.setting}, have the same bytes: "
                "the same rows would be in two splits, and the metrics better than the model is. Take one of the two "
                "out."
            )
        if other is not file:
            twice.append((other, file))
    if twice:
        more = f", and {len(twice) - 1:,} more such files" if len(twice) > 1 else ""
        warn(
            f"{twice[0][0].location} and {twice[0][1].location} have the same bytes{more}: their rows are in the data "
            "twice. Take one of them out, unless that is meant."
        )


def warn_of_files_known(files: Sequence[SourceFile], fingerprints: Sequence[str], dataset: DatasetManifest) -> None:
    """Warn of files of a table that are files of the data set on which it is to be measured how good a model is."""
    inputs: list[dict[str, str]] = dataset.inputs["files"]  # type: ignore[assignment]
    known = {entry["sha256"]: entry for entry in inputs if entry.get("split", SPLITS[0]) == SPLITS[0]}
    for file, sha256 in zip(files, fingerprints, strict=True):
        if sha256 in known:
            warn(
                f"{file.location} has the same bytes as {known[sha256]['name']} of the run's data, from which the "
                "model learned: the figures are better than they would be on rows that it has not seen."
            )
