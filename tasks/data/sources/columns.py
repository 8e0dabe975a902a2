"""The user's columns: found and typed by the files' footers.

Invariant: every file has every column that the configuration names, with a type that fits its meaning and agrees with
the other files. DuckDB's union by name would fill a column that a file lacks with nulls: so it is checked before.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.configuration.run import DataConfig
from tasks.data.sources.column_types import agreed_family, common_type
from tasks.data.sources.formats import CSV, PARQUET_SUFFIX, SUFFIXES, TSV, format_of
from tasks.data.sources.label_registry import form_of
from tasks.data.sources.messages import REWRITE, broken_contract
from tasks.data.sources.source_file import SourceFile, cannot_read
from tasks.text import count_of

NUMBER_ROWS = "take data.id out: file and row number are the id then"
# What separates fields in files of other tools, and what to do about such a file.
SEPARATORS = {
    "\t": "by tabs: call the file .tsv",
    ",": "by commas: call the file .csv",
    ";": "by semicolons: write the file again with commas between them",
    "|": "by '|': write the file again with commas between them",
}
# How to bring the rows of what is often taken for a source.
AS_LINES = {
    ".json": "write each row as a JSON object in a line of its own, and call the file .jsonl",
    ".xlsx": "save the sheet as CSV, in UTF-8",
    ".xls": "save the sheet as CSV, in UTF-8",
    ".txt": "name the file by its format: .csv if commas separate its fields, .tsv if tabs do",
}
PARQUET_FILE = "a complete Parquet file"
# Arrow's words for a file that does not end as Parquet does.
NO_END = "magic bytes not found"
ROW_NUMBER_COLUMNS = {"file_index", "file_row_number"}
READING_THREADS = 8
_Read = TypeVar("_Read")


@dataclass(frozen=True)
class SourceTable:
    """The files as one table. `families` has the kind of type of every named column.

    `split_type` is DuckDB's type of the column that splits the rows, where the files do not have one type of it.
    """

    files: list[SourceFile]
    num_rows: list[int]
    families: dict[str, str]
    has_row_numbers: bool
    split_type: str | None = None

    @property
    def num_rows_total(self) -> int:
        return sum(self.num_rows)


class RowRange(NamedTuple):
    """Rows [start, stop) of a file."""

    file_index: int
    start: int
    stop: int


def inspect_files(files: list[SourceFile], config: DataConfig) -> SourceTable:
    """Read the footer of every file, which is Parquet or was made Parquet.

    Raises `ContractError` for a damaged file, a missing column or a type that is wrong.
    """
    footers = read_each(read_footer, files)
    num_rows = [footer.num_rows for footer in footers]
    schemas = [footer.schema.to_arrow_schema() for footer in footers]
    _require_rows(files, num_rows)
    families = require_fitting(files, schemas, config)
    names = {name.lower() for schema in schemas for name in schema.names}
    split_type = common_type(config.split.column, schemas) if config.split.column is not None else None
    return SourceTable(files, num_rows, families, not names & ROW_NUMBER_COLUMNS, split_type)


def read_parquet_schema(file: SourceFile) -> pa.Schema:
    """The columns of a Parquet file and their types."""
    return read_footer(file).schema.to_arrow_schema()


def read_each(read: Callable[[SourceFile], _Read], files: list[SourceFile]) -> list[_Read]:
    """What `read` finds in each file, several at a time; what it raises for the first file that is wrong is raised."""
    with ThreadPoolExecutor(READING_THREADS, thread_name_prefix="read") as pool:
        try:
            return list(pool.map(read, files))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def require_columns(file: SourceFile, names: Sequence[str], config: DataConfig) -> None:
    """Raise `ContractError` unless each column that the configuration names is there once."""
    lowered = [name.lower() for name in names]
    for column, role in named_columns(config):
        key = f"data.{role.split()[0]}"
        if column not in names:
            hint = _in_folder_names(column, file) or _without_header(names, file, config) or _similar(column, names)
            other = f"{hint}set {key} to a column of every file{f', or {NUMBER_ROWS}' if role == 'id' else ''}"
            raise broken_contract(
                f"Column {column!r} is missing in {file.name}.",
                f"every file has the column that {key} names",
                f"{'the columns' if len(names) != 1 else 'one column,'} {_listed(names)} in {file.location}",
                _separated(names, file) or other,
            )
        if lowered.count(column.lower()) > 1:
            raise broken_contract(
                f"Column {column!r} is ambiguous in {file.name}.",
                "each name once, in upper or lower case",
                _listed([name for name in names if name.lower() == column.lower()]),
                "rename one of them",
            )


def require_fitting(files: list[SourceFile], schemas: list[pa.Schema], config: DataConfig) -> dict[str, str]:
    """The kind of type of every named column. Raises `ContractError` where one is missing or does not fit."""
    for file, schema in zip(files, schemas, strict=True):
        require_columns(file, schema.names, config)
    return {column: agreed_family(column, role, files, schemas) for column, role in named_columns(config)}


def named_columns(config: DataConfig) -> list[tuple[str, str]]:
    """Every column the configuration names, with the key that names it."""
    single = {role: getattr(config, role) for role in ("id", "tokens", "attention_mask")}
    columns = [(column, role) for role, column in single.items() if column] + form_of(config).roles(config)
    columns[1 if config.id else 0 : 0] = [(column, "text") for column in config.text_columns]
    columns += [(config.weight, "weight")] if config.weight else []
    columns += [(column, "numeric") for column in config.numeric]
    columns += [(column, "categorical") for column in config.categorical]
    if config.split.column is not None:
        columns.append((config.split.column, f"split.column by {config.split.by}"))
    return columns


def _require_rows(files: list[SourceFile], num_rows: list[int]) -> None:
    """Raise `ContractError` where data.source, or a split's own source, has no rows."""
    rows_of: dict[str, int] = {}
    for file, count in zip(files, num_rows, strict=True):
        rows_of[file.setting] = rows_of.get(file.setting, 0) + count
    for setting in (setting for setting, count in rows_of.items() if count == 0):
        names = [file.name for file in files if file.setting == setting]
        raise broken_contract(
            f"There are no rows in {_listed(names)}.",
            "at least one row in the data",
            f"{count_of(len(names), 'file')} with 0 rows",
            f"check what wrote these files, or correct {setting}",
        )


def read_footer(file: SourceFile) -> pq.FileMetaData:
    if file.num_bytes == 0:
        raise broken_contract(f"The file {file.location} is empty.", PARQUET_FILE, "0 bytes", REWRITE)
    try:
        if file.parquet is not None:
            return pq.read_metadata(file.parquet)
        with file.open() as opened:
            return pq.read_metadata(opened)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # Arrow's own of a damaged file have none
            raise cannot_read(file.location, error) from error
        expected, found = _no_parquet(file, str(error).partition("\n")[0])
        raise broken_contract(
            f"The file {file.location} cannot be read.",
            expected,
            found,
            next((remedy for suffix, remedy in AS_LINES.items() if file.name.lower().endswith(suffix)), REWRITE),
        ) from error


def _no_parquet(file: SourceFile, cause: str) -> tuple[str, str]:
    """What was expected of a file that was read as Parquet and is none, or no whole one; and what was found."""
    if _first_bytes(file) == b"PAR1":
        cause = "its end is missing" if NO_END in cause else cause
        return PARQUET_FILE, f"a Parquet file that was cut off or damaged: {cause}"
    if file.name.lower().endswith(PARQUET_SUFFIX):
        return PARQUET_FILE, "something that is not Parquet"
    expected = f"a format that the file's name ends with: {', '.join((PARQUET_SUFFIX, *SUFFIXES))}"
    return expected, "another name, and something that is not Parquet"


def _first_bytes(file: SourceFile) -> bytes:
    try:
        with file.open() as opened:
            return bytes(opened.read(4))
    except OSError:
        return b""


def _in_folder_names(column: str, file: SourceFile) -> str:
    """A hint where the folders are called after the column's values, as partitions are."""
    partition = next((part for part in file.location.split("/")[:-1] if part.startswith(f"{column}=")), None)
    if partition is None:
        return ""
    return (
        f"the names of folders, such as {partition}, are not read as columns: write the column into the files "
        "(DuckDB: COPY (FROM read_parquet('FOLDER/**/*.parquet', hive_partitioning = true)) TO 'all.parquet'); or "
    )


def _separated(names: Sequence[str], file: SourceFile) -> str:
    """A hint where the fields of a file of lines are separated in another way than its name says."""
    if format_of(file.name) not in (CSV, TSV) or len(names) != 1:
        return ""
    found = next((name for mark, name in SEPARATORS.items() if mark in names[0]), None)
    return "" if found is None else f"its fields look separated {found}"


def _without_header(names: Sequence[str], file: SourceFile, config: DataConfig) -> str:
    """A hint where a file of lines has none of the columns: its first line may be a row."""
    has_one = {name.lower() for name in names} & {column.lower() for column, _ in named_columns(config)}
    if format_of(file.name) not in (CSV, TSV) or has_one or len(names) < 2:
        return ""
    return "if the first line is a row already, put a line with the names of the columns before it; else "


def _similar(column: str, names: Sequence[str]) -> str:
    lowered = column.lower()
    close = [name for name in names if lowered == name.lower()]
    close = close or [name for name in names if lowered and lowered in name.lower()]
    close = close[:3] or get_close_matches(column, names, 3)
    return f"did you mean {' or '.join(repr(name) for name in close)}? " if close else ""


def _listed(names: Sequence[str], limit: int = 12) -> str:
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
