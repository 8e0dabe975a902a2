"""The user's columns: found and typed by the files' footers, and put into one form for SQL.

Invariant: every file has every column that the configuration names, with a type that fits its meaning and agrees with
the other files. DuckDB's union by name would fill a column that a file lacks with nulls: so it is checked before.
"""

import glob
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import ContractError
from tasks.configuration import DataConfig
from tasks.data.labels import are_booleans_words
from tasks.data.sources.formats import SUFFIXES
from tasks.data.sources.messages import REWRITE, broken_contract
from tasks.data.sources.source_file import SourceFile, cannot_read

if TYPE_CHECKING:
    import duckdb  # takes longer to import than a mistake in a column takes to be found

TEXT, WHOLE, REAL, BOOLEAN, NOTHING = "text", "whole numbers", "real numbers", "booleans", "nothing but nulls"
TIME, ZONED_TIME = "times", "times with a zone"
WHOLE_LIST, BOOLEAN_LIST = "lists of whole numbers", "lists of booleans"
TIMES = (TIME, ZONED_TIME)

# A column that is null in the whole of one file has no type there; how many nulls are allowed is the contract's matter.
FITTING = {
    "id": (TEXT, WHOLE),
    "text": (TEXT,),
    "tokens": (WHOLE_LIST,),
    "attention_mask": (WHOLE_LIST, BOOLEAN_LIST),
    "label": (TEXT, WHOLE, BOOLEAN),
    "numeric": (WHOLE, REAL, BOOLEAN),
    "categorical": (TEXT, WHOLE, REAL, BOOLEAN),
    "split.column by column": (TEXT, WHOLE, BOOLEAN, *TIMES),
    "split.column by time": (*TIMES, WHOLE),
    "split.column by given": (TEXT, WHOLE),
}
# Types that may stand side by side: a reader widens them without changing a value.
AGREEING = {"numeric": ({WHOLE, REAL, BOOLEAN},), "categorical": ({WHOLE, REAL},)}
NUMBER_ROWS = "take data.id out: file and row number are the id then"
NOT_PARQUET = f"something that is not Parquet, whose name does not end with {', '.join(SUFFIXES)}"
ROW_NUMBER_COLUMNS = {"file_index", "file_row_number"}
READING_THREADS = 8
LARGEST_WHOLE = 2**63 - 1  # of a BIGINT
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


class Stretch(NamedTuple):
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
    split_type = _common_type(config.split.column, schemas) if config.split.column is not None else None
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
            hint = _in_folder_names(column, file) or _similar(column, names)
            raise broken_contract(
                f"Column {column!r} is missing in {file.name}.",
                f"every file has the column that {key} names",
                f"the columns {_listed(names)} in {file.place}",
                f"{hint}set {key} to a column of every file{f', or {NUMBER_ROWS}' if role == 'id' else ''}",
            )
        if lowered.count(column.lower()) > 1:
            raise broken_contract(
                f"Column {column!r} is ambiguous in {file.name}.",
                "names of columns differ in more than upper and lower case",
                _listed([name for name in names if name.lower() == column.lower()]),
                "rename one of them",
            )


def require_fitting(files: list[SourceFile], schemas: list[pa.Schema], config: DataConfig) -> dict[str, str]:
    """The kind of type of every named column. Raises `ContractError` where one is missing or does not fit."""
    for file, schema in zip(files, schemas, strict=True):
        require_columns(file, schema.names, config)
    return {column: _agreed_family(column, role, files, schemas) for column, role in named_columns(config)}


def named_columns(config: DataConfig) -> list[tuple[str, str]]:
    """Every column the configuration names, with the key that names it."""
    single = {role: getattr(config, role) for role in ("id", "text", "tokens", "attention_mask", "label")}
    columns = [(column, role) for role, column in single.items() if column]
    columns += [(column, "numeric") for column in config.numeric]
    columns += [(column, "categorical") for column in config.categorical]
    if config.split.column is not None:
        columns.append((config.split.column, f"split.column by {config.split.by}"))
    return columns


def samples_sql(table: SourceTable, config: DataConfig, stretch: Stretch | None = None, is_narrow: bool = False) -> str:
    """SQL of all rows, or those of a stretch, in the one form that everything else reads.

    Columns: `id`, `label`, `text` or (`tokens`, `mask`), `split_key`, `n0`... (DOUBLE, missing is null) and `c0`...
    (VARCHAR, missing is null); `source_row` is its number in its file, null where the user's columns hide it. Where a
    split has a source of its own: `own_split`, that split's index, null for a row of data.source. Tokens and mask are
    BIGINT[]; with `is_narrow` INTEGER[] and TINYINT[], where a value that does not fit is null, and so are its list's.
    """
    if stretch is None and config.split.has_own_sources:
        whole = (Stretch(index, 0, num_rows) for index, num_rows in enumerate(table.num_rows))
        return " UNION ALL ".join(samples_sql(table, config, stretch, is_narrow) for stretch in whole)
    row = "file_row_number" if table.has_row_numbers else "NULL::BIGINT"
    file_index = None if stretch is None else stretch.file_index
    expressions = {"id": _id_sql(table, config, file_index), "source_row": row, "label": _label_sql(table, config)}
    if config.text is not None:
        expressions["text"] = f"CAST({identifier(config.text)} AS VARCHAR)"
    # Not by way of BIGINT[]: to cast all values once more takes as long as half of their decoding.
    for name, column, narrow in (("tokens", config.tokens, "INTEGER[]"), ("mask", config.attention_mask, "TINYINT[]")):
        if column is not None:
            expressions[name] = f"TRY_CAST({identifier(column)} AS {narrow})" if is_narrow else _list_sql(column)
    expressions["split_key"] = _split_key_sql(table, config)
    if stretch is not None and config.split.has_own_sources:
        own = table.files[stretch.file_index].split
        expressions["own_split"] = f"CAST({'NULL' if own is None else own} AS INTEGER)"
    for index, column in enumerate(config.numeric):
        number = f"CAST({identifier(column)} AS DOUBLE)"
        expressions[f"n{index}"] = f"CASE WHEN isnan({number}) THEN NULL ELSE {number} END"
    for index, column in enumerate(config.categorical):
        expressions[f"c{index}"] = _category_sql(identifier(column), table.families[column])
    selected = ", ".join(f"{expression} AS {name}" for name, expression in expressions.items())
    if stretch is None:
        return f"SELECT {selected} FROM {_files_sql(table.files)}"
    rows = f"SELECT {selected} FROM {_files_sql([table.files[stretch.file_index]])}"
    if (stretch.start, stretch.stop) == (0, table.num_rows[stretch.file_index]):
        return rows
    # DuckDB reads no row group in which there is none of these rows.
    return f"{rows} WHERE file_row_number >= {stretch.start} AND file_row_number < {stretch.stop}"


def only_row(connection: "duckdb.DuckDBPyConnection", query: str) -> tuple[Any, ...]:
    """The one row of a query, read to its end: a result that is not finished blocks the connection."""
    (row,) = connection.execute(query).fetchall()
    return tuple(row)


def identifier(name: str) -> str:
    """A column's name as SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as SQL."""
    return "'" + text.replace("'", "''") + "'"


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
            f"{len(names):,} files with 0 rows",
            f"check what wrote these files, or correct {setting}",
        )


def _split_key_sql(table: SourceTable, config: DataConfig) -> str:
    if config.split.column is None:
        return "NULL"
    column = identifier(config.split.column)
    return column if table.split_type is None else f"CAST({column} AS {table.split_type})"


def _common_type(column: str, schemas: Sequence[pa.Schema]) -> str | None:
    """DuckDB's type of a column of all files together; None where it has one type in all of them."""
    types = list(dict.fromkeys(schema.field(column).type for schema in schemas))
    if len(types) == 1:
        return None
    import duckdb

    with duckdb.connect() as connection:
        for index, found in enumerate(types):
            connection.register(f"file{index}", pa.table({"value": pa.array([], found)}))
        union = " UNION ALL ".join(f"SELECT value FROM file{index}" for index in range(len(types)))
        common = str(connection.sql(union).types[0])
    # Of signed and unsigned numbers of 64 bits; Parquet has no such type, but this one, with the same values and texts.
    return "DECIMAL(38, 0)" if common == "HUGEINT" else common


def _files_sql(files: Sequence[SourceFile]) -> str:
    # DuckDB takes every path for a pattern, and folders called key=value for columns.
    paths = ", ".join(literal(glob.escape(str(file.rows))) for file in files)
    return f"read_parquet([{paths}], union_by_name = true, hive_partitioning = false)"


def _id_sql(table: SourceTable, config: DataConfig, file_index: int | None) -> str:
    if config.id:
        return f"CAST({identifier(config.id)} AS VARCHAR)"
    if not table.has_row_numbers:
        raise broken_contract(
            "Rows cannot be numbered.",
            f"no column called {' or '.join(sorted(ROW_NUMBER_COLUMNS))} when data.id is not set",
            "such a column: DuckDB counts rows in a column of the same name",
            "rename the column, or set data.id to a column with unique ids",
        )
    return f"({'file_index' if file_index is None else file_index} || ':' || file_row_number)"


def _label_sql(table: SourceTable, config: DataConfig) -> str:
    column = identifier(config.label)
    if table.families[config.label] == BOOLEAN and not are_booleans_words(config):
        column = f"CAST({column} AS INTEGER)"
    return f"CAST({column} AS VARCHAR)"


def _list_sql(column: str) -> str:
    """A list of whole numbers as BIGINT[]; what is beyond that, as padding of unsigned numbers may be, is its largest.

    DuckDB knows the type when it plans, so lists of other types are cast and nothing else.
    """
    found = identifier(column)
    # Not `least`, which would make a null the largest.
    at_most = f"CASE WHEN n > {LARGEST_WHOLE} THEN {LARGEST_WHOLE} ELSE n END"
    cut = f"list_transform({found}::HUGEINT[], lambda n: {at_most})"
    is_beyond = f"typeof({found}) IN ('UBIGINT[]', 'HUGEINT[]')"
    return f"CASE WHEN {is_beyond} THEN {cut}::BIGINT[] ELSE {found}::BIGINT[] END"


def _category_sql(column: str, family: str) -> str:
    """A category's name. Whole numbers with nulls often arrive as floats: 3.0 and 3 are one category."""
    if family != REAL:
        return f"CAST({column} AS VARCHAR)"
    number = f"CAST({column} AS DOUBLE)"
    whole = f"{number} = trunc({number}) AND abs({number}) < 1e15"
    return (
        f"CASE WHEN isnan({number}) THEN NULL WHEN {whole} THEN CAST(CAST({number} AS BIGINT) AS VARCHAR) "
        f"ELSE CAST({number} AS VARCHAR) END"
    )


def read_footer(file: SourceFile) -> pq.FileMetaData:
    expected = "a complete Parquet file"
    if file.num_bytes == 0:
        raise broken_contract(f"The file {file.place} is empty.", expected, "0 bytes", REWRITE)
    try:
        if file.parquet is not None:
            return pq.read_metadata(file.parquet)
        with file.open() as opened:
            return pq.read_metadata(opened)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # Arrow's own of a damaged file have none
            raise cannot_read(file.place, error) from error
        begins_right = _first_bytes(file) == b"PAR1"
        found = "a Parquet file that was cut off or damaged" if begins_right else NOT_PARQUET
        raise broken_contract(
            f"The file {file.place} cannot be read.",
            expected,
            f"{found} ({str(error).partition(chr(10))[0]})",
            REWRITE,
        ) from error


def _first_bytes(file: SourceFile) -> bytes:
    try:
        with file.open() as opened:
            return bytes(opened.read(4))
    except OSError:
        return b""


def _agreed_family(column: str, role: str, files: list[SourceFile], schemas: list[pa.Schema]) -> str:
    """The kind of type that a column has in all files."""
    first: dict[str, SourceFile] = {}
    for file, schema in zip(files, schemas, strict=True):
        family = family_of(schema.field(column).type)
        first.setdefault(family, file)
        if family not in (*FITTING[role], NOTHING):
            raise _wrong_type(column, role, file, schema.field(column).type, family)
    first.pop(NOTHING, None)
    if len(first) > 1 and not any(first.keys() <= together for together in AGREEING.get(role, ())):
        (family, file), (other_family, other_file) = list(first.items())[:2]
        raise broken_contract(
            f"The files disagree on the type of column {column!r}.",
            "one type in all files",
            f"{family} in {file.name}, {other_family} in {other_file.name}",
            "write these files with one type",
        )
    return REAL if REAL in first else next(iter(first), NOTHING)


def _wrong_type(column: str, role: str, file: SourceFile, found: pa.DataType, family: str) -> ContractError:
    hint = ""
    if family == REAL and role in ("text", "label", "id"):
        hint = "; pandas writes a column as floats when values are missing (NaN): fill them or drop those rows first"
    if family == TEXT and role in ("numeric", "split.column by time"):
        hint = "; it is text: convert it to numbers or timestamps when writing the file"
    return broken_contract(
        f"Column {column!r} in {file.name} has the wrong type.",
        f"{' or '.join(FITTING[role])}, for data.{role}",
        f"{found} in {file.place}",
        f"write the column with such a type, or name another one in data.{role.split()[0]}{hint}",
    )


def family_of(kind: pa.DataType) -> str:
    """What kind of type it is, as `FITTING` names it; one that fits nothing by Arrow's own name."""
    types = pa.types
    if types.is_dictionary(kind):
        return family_of(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return {WHOLE: WHOLE_LIST, BOOLEAN: BOOLEAN_LIST, NOTHING: NOTHING}.get(family_of(kind.value_type), str(kind))
    if types.is_timestamp(kind):
        return ZONED_TIME if kind.tz else TIME
    tests = (
        (TEXT, (types.is_string, types.is_large_string, types.is_string_view)),
        (WHOLE, (types.is_integer,)),
        (REAL, (types.is_floating, types.is_decimal)),
        (BOOLEAN, (types.is_boolean,)),
        (TIME, (types.is_date,)),
        (NOTHING, (types.is_null,)),
    )
    return next((family for family, checks in tests if any(check(kind) for check in checks)), str(kind))


def _in_folder_names(column: str, file: SourceFile) -> str:
    """A hint where the folders are called after the column's values, as partitions are."""
    partition = next((part for part in file.place.split("/")[:-1] if part.startswith(f"{column}=")), None)
    if partition is None:
        return ""
    return (
        f"the names of folders, such as {partition}, are not read as columns: write the column into the files "
        "(DuckDB: COPY (FROM read_parquet('FOLDER/**/*.parquet', hive_partitioning = true)) TO 'all.parquet'); or "
    )


def _similar(column: str, names: Sequence[str]) -> str:
    lowered = column.lower()
    close = [name for name in names if lowered == name.lower()] or [name for name in names if lowered in name.lower()]
    close = close[:3] or get_close_matches(column, names, 3)
    return f"did you mean {' or '.join(repr(name) for name in close)}? " if close else ""


def _listed(names: Sequence[str], limit: int = 12) -> str:
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
