"""Which format a source file has.

Invariant: the end of its name alone decides it, and all files of a source have one format.
"""

from collections.abc import Iterable

from storage.errors import ConfigurationError

PARQUET, CSV, TSV, JSON_LINES, ARROW = "Parquet", "CSV", "TSV", "JSON Lines", "Arrow"
PARQUET_SUFFIX = ".parquet"
# In upper or lower case; a file with another suffix, or with none, is taken for Parquet.
SUFFIXES = {
    ".csv": CSV,
    ".csv.gz": CSV,
    ".tsv": TSV,
    ".tsv.gz": TSV,
    ".jsonl": JSON_LINES,
    ".jsonl.gz": JSON_LINES,
    ".ndjson": JSON_LINES,
    ".ndjson.gz": JSON_LINES,
    ".arrow": ARROW,
    ".feather": ARROW,
}
FORMATS = "Parquet, CSV, TSV, JSON Lines or Arrow/Feather"
A_SOURCE = f"file ({FORMATS}), a folder of such files, or a glob, on this machine or in a bucket (s3://bucket/prefix/)"


def format_of(name: str) -> str:
    """The format of a file of this name."""
    return _known_format(name) or PARQUET


def is_in_source(name: str) -> bool:
    """Whether a file in a source folder is one of its files, by its name relative to the folder, with `/`.

    In upper or lower case. What writers leave aside is not: `_metadata`, `_temporary/`, hidden files.
    """
    is_data = name.lower().endswith(PARQUET_SUFFIX) or _known_format(name) is not None
    return is_data and not is_left_aside(name)


def is_left_aside(name: str) -> bool:
    """Whether a file or folder in a source folder is what writers and systems leave there, by its relative name."""
    return any(part.startswith((".", "_")) for part in name.split("/"))


def is_compressed(name: str) -> bool:
    """Whether the whole file is compressed with gzip."""
    return name.lower().endswith(".gz")


def require_one_format(setting: str, source: str, names: Iterable[str]) -> None:
    """Raise `ConfigurationError` if the files of a source have more than one format."""
    by_format: dict[str, list[str]] = {}
    for name in names:
        by_format.setdefault(format_of(name), []).append(name)
    if len(by_format) > 1:
        found = ", ".join(f"{len(found):,} {kind} ({found[0]})" for kind, found in sorted(by_format.items()))
        example = (
            PARQUET_SUFFIX if PARQUET in by_format else next(s for s, kind in SUFFIXES.items() if kind in by_format)
        )
        raise ConfigurationError(
            f"{setting}: the files of a source must all have one format; {source} has {found}. Set {setting} to a "
            f"glob that matches the files of one format only (in a folder: FOLDER/**/*{example}), or convert the "
            "others."
        )


def _known_format(name: str) -> str | None:
    lowered = name.lower()
    return next((kind for suffix, kind in SUFFIXES.items() if lowered.endswith(suffix)), None)
