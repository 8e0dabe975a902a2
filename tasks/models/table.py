"""Rows of a user's table for an exported model, batch by batch, in any format that `prepare` reads.

Invariant: the readers are those of the preparation, so a value means what it meant in training. Memory holds one batch,
and each row of each file comes once, in the order of the files' names.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import ContractError
from tasks.configuration.run import DataConfig
from tasks.data.readers.arrow_files import open_arrow_file, read_arrow_schema
from tasks.data.readers.lines import CsvRows, JsonRows, open_lines, read_header
from tasks.data.readers.values import meanings_of
from tasks.data.sources.column_types import FITTING, NOTHING, family_of
from tasks.data.sources.columns import read_each, read_footer
from tasks.data.sources.files import find_files
from tasks.data.sources.formats import ARROW, JSON_LINES, PARQUET, format_of
from tasks.data.sources.messages import BrokenContractError
from tasks.data.sources.source_file import LocalFile, SourceFile
from training.export.standalone.holdfast_inputs import Inputs

BATCH_ROWS = 1024
BATCH_BYTES = 8 << 20
READ_BYTES = 1 << 20
SETTING = "DATA"
ADVICE = "bring the data into the form of the model's training data; its README.md lists the columns"


class Wrong(NamedTuple):
    """A value that the model cannot take."""

    column: str
    expected: str
    found: str


@dataclass(frozen=True)
class Batch:
    """N rows of one file. `lines` are where they begin in a text file; `wrong` has rows that could not be read."""

    file: str
    first_row: int
    columns: dict[str, list[Any]]
    ids: pa.Array | None = None
    lines: list[int] | None = None
    wrong: dict[int, Wrong] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def describe_row(self, row: int) -> str:
        """Where a row of the batch is, for a message."""
        if self.lines is not None:
            return f"in line {self.lines[row]:,} of {self.file}"
        return f"in row {self.first_row + row:,} of {self.file}, where the first row is 0"


@dataclass(frozen=True)
class Table:
    """Files of one format. `id_field` is None where they have no ids, `num_rows` where the rows were not counted."""

    files: list[SourceFile]
    inputs: Inputs
    id_field: pa.Field | None
    num_rows: int | None

    def batches(self) -> Iterator[Batch]:
        """All rows. Raises `ContractError` for a file that cannot be read, and for one that changed meanwhile."""
        read = {PARQUET: _parquet, ARROW: _arrow}.get(format_of(self.files[0].name), _lines)
        for file in self.files:
            with _own_words():
                yield from read(file, self.inputs, None if self.id_field is None else self.id_field.name)
            if not file.is_as_listed():
                raise bad_data(
                    f"{file.location} was changed while it was read", "a file that stays as it is", "another"
                )

    def is_of(self, path: Path) -> bool:
        """Whether a file is one of the table's; False also where it cannot be looked at."""
        try:
            return any(isinstance(file, LocalFile) and path.samefile(file.path) for file in self.files)
        except OSError:
            return False


def open_table(source: str, inputs: Inputs, id_column: str | None) -> Table:
    """The files at `source`, each with the columns that the model takes.

    Raises `ConfigurationError` if there are none, `ContractError` for a column that is missing or of a wrong type, and
    `StoreError` if a bucket cannot be read.
    """
    with _own_words():
        files = find_files(source, SETTING)
        kind = format_of(files[0].name)
        if kind == JSON_LINES:  # its keys are known when all of it was read
            has_ids = id_column is not None and id_column in _first_keys(files[0])
            return Table(files, inputs, pa.field(id_column, pa.string()) if has_ids else None, None)
        if kind not in (PARQUET, ARROW):
            tables = [pa.schema([(name, pa.string()) for name in names]) for names in read_each(read_header, files)]
            return Table(files, inputs, _checked(files, tables, inputs, id_column, is_typed=False), None)
        if kind == ARROW:
            schemas = read_each(read_arrow_schema, files)
            return Table(files, inputs, _checked(files, schemas, inputs, id_column), None)
        footers = read_each(read_footer, files)
        schemas = [footer.schema.to_arrow_schema() for footer in footers]
        num_rows = sum(footer.num_rows for footer in footers)
        return Table(files, inputs, _checked(files, schemas, inputs, id_column), num_rows)


def bad_data(problem: str, expected: str, found: str, advice: str = ADVICE) -> ContractError:
    """The one form of a message about data that cannot be predicted."""
    lines = (f"{problem}.", f"  expected: {expected}", f"  found: {found}", f"  what to do: {advice}")
    return ContractError("\n".join((*lines, "No result was written.")))


@contextmanager
def _own_words() -> Iterator[None]:
    """A block in which the messages of the preparation's readers get the advice for a prediction."""
    try:
        yield
    except BrokenContractError as error:
        raise bad_data(error.problem.rstrip("."), error.expected, error.found) from error


def _checked(
    files: list[SourceFile], schemas: list[pa.Schema], inputs: Inputs, id_column: str | None, is_typed: bool = True
) -> pa.Field | None:
    """The column of ids, which all files have or none. Raises `ContractError`."""
    for file, schema in zip(files, schemas, strict=True):
        _require_columns(inputs, id_column, schema, file.location, is_typed)
    found = [schema.field(id_column) for schema in schemas if id_column in schema.names]
    if not found:
        return None
    types = sorted({str(one.type) for one in found})
    if len(found) < len(files) or len(types) > 1:
        problem = f"The files of {SETTING} disagree on the column of ids, {id_column!r}"
        have = f"{len(found):,} of {len(files):,} files with it, of type {' and '.join(types)}"
        raise bad_data(problem, "it has one type in all files, or is in none", have)
    return found[0]


def _require_columns(inputs: Inputs, id_column: str | None, schema: pa.Schema, source: str, is_typed: bool) -> None:
    """Raise `ContractError` unless each column is there once, with a fitting type, and that of the ids at most once."""
    if id_column is not None and schema.names.count(id_column) > 1:
        raise bad_data(
            f"{source} has more than one column {id_column!r}", "one column of this name, for the ids", "several"
        )
    for name, role in _roles(inputs):
        if schema.names.count(name) != 1:
            problem = f"{source} has {'more than one' if name in schema.names else 'no'} column {name!r}"
            shown = f"the columns {', '.join(map(repr, schema.names[:12]))}"
            raise bad_data(problem, f"one column of this name, for {role}", shown)
        kind = schema.field(name).type
        if is_typed and family_of(kind) not in (*FITTING[role], NOTHING):
            expected = f"{' or '.join(FITTING[role])}, for {role}"
            raise bad_data(f"{source} has a column {name!r} of the wrong type", expected, str(kind))


def _roles(inputs: Inputs) -> list[tuple[str, str]]:
    body = {"tokens": inputs.tokens, "attention_mask": inputs.attention_mask}
    columns = [(name, "text") for name in inputs.texts]
    columns += [(name, role) for role, name in body.items() if name is not None]
    columns += [(column["name"], "numeric") for column in inputs.numeric]
    return columns + [(column["name"], "categorical") for column in inputs.categorical]


def _parquet(file: SourceFile, inputs: Inputs, id_column: str | None) -> Iterator[Batch]:
    try:
        # Whole columns of a row group, or buffers that are filled ahead, would stay in memory.
        with pq.ParquetFile(file.parquet or file.open(), pre_buffer=False, buffer_size=READ_BYTES) as opened:
            yield from _of_arrow(opened.iter_batches(BATCH_ROWS, columns=_names(inputs, id_column)), file, id_column)
    except (pa.ArrowException, OSError) as error:
        cause = str(error).partition("\n")[0]
        raise bad_data(f"{file.location} cannot be read", "a whole Parquet file", cause) from error


def _arrow(file: SourceFile, inputs: Inputs, id_column: str | None) -> Iterator[Batch]:
    with open_arrow_file(file, _names(inputs, id_column)) as (_, batches):
        parts = (batch.slice(at, BATCH_ROWS) for batch in batches for at in range(0, len(batch), BATCH_ROWS))
        yield from _of_arrow(parts, file, id_column)


def _names(inputs: Inputs, id_column: str | None) -> list[str]:
    return list(dict.fromkeys([*inputs.columns, *([id_column] if id_column else [])]))


def _of_arrow(batches: Iterator[pa.RecordBatch], file: SourceFile, id_column: str | None) -> Iterator[Batch]:
    first = 0
    for batch in batches:
        wrong: dict[int, Wrong] = {}
        columns = {name: _values(batch.column(name), name, wrong) for name in batch.schema.names if name != id_column}
        ids = None if id_column is None else batch.column(id_column)
        yield Batch(file.location, first, columns, ids, wrong=wrong)
        first += len(batch)


def _values(column: pa.Array, name: str, wrong: dict[int, Wrong]) -> list[Any]:
    """The values; Arrow reads bytes that are no text without a look, and they are found here."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        return [_value(value, row, name, wrong) for row, value in enumerate(column)]


def _value(value: pa.Scalar, row: int, name: str, wrong: dict[int, Wrong]) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        wrong[row] = Wrong(name, "text in UTF-8", f"bytes that are no text: {error}")
        return None


def _lines(file: SourceFile, inputs: Inputs, id_column: str | None) -> Iterator[Batch]:
    names, first = _names(inputs, id_column), 0
    is_json = format_of(file.name) == JSON_LINES
    parsers = _parsers(inputs, id_column, is_json)
    with open_lines(file) as lines:
        rows: CsvRows | JsonRows = JsonRows(lines) if is_json else CsvRows(lines)
        found = rows.read(names)
        while batch := list(_up_to(found, lambda: lines.num_bytes)):
            yield _parsed(batch, names, parsers, id_column, file.location, first)
            first += len(batch)
        if is_json and first:
            for name, role in _roles(inputs):
                if name not in rows.names:
                    shown = f"the keys {', '.join(map(repr, rows.names[:12]))}"
                    raise bad_data(f"{file.location} has no key {name!r} in any line", f"this key, for {role}", shown)


def _up_to(rows: Iterator[Any], num_bytes: Callable[[], int]) -> Iterator[Any]:
    """The next rows: so many, or fewer where their lines are long."""
    begun = num_bytes()
    for row in islice(rows, BATCH_ROWS):
        yield row
        if num_bytes() - begun > BATCH_BYTES:
            return


def _parsers(inputs: Inputs, id_column: str | None, is_json: bool) -> list[tuple[str, Callable[[Any], Any]]]:
    """By the order of the columns that are read: what is expected of a value, and how it is read."""
    described = DataConfig(
        id=id_column,
        text=inputs.texts or None,
        tokens=inputs.tokens,
        attention_mask=inputs.attention_mask,
        numeric=[column["name"] for column in inputs.numeric],
        categorical=[column["name"] for column in inputs.categorical],
        label="",  # no column without a name is asked for
        kind="multiclass",
    )
    found = {meaning.column: (meaning.expected, meaning.parse) for meaning in meanings_of(described, is_json)}
    return [found[name] for name in _names(inputs, id_column)]


def _parsed(
    rows: list[tuple[int, list[Any]]],
    names: list[str],
    parsers: list[tuple[str, Callable[[Any], Any]]],
    id_column: str | None,
    source: str,
    first: int,
) -> Batch:
    columns: dict[str, list[Any]] = {name: [] for name in names}
    wrong: dict[int, Wrong] = {}
    for row, (_, values) in enumerate(rows):
        for name, value, (expected, parse) in zip(names, values, parsers, strict=True):
            try:
                columns[name].append(None if value is None else parse(value))
            except ValueError:
                columns[name].append(None)
                wrong.setdefault(row, Wrong(name, expected, repr(value)[:60]))
    ids = None if id_column is None else pa.array(columns[id_column], pa.string())
    inputs = {name: values for name, values in columns.items() if name != id_column}
    return Batch(source, first, inputs, ids, [line for line, _ in rows], wrong)


def _first_keys(file: SourceFile) -> list[str]:
    with open_lines(file) as lines:
        rows = JsonRows(lines)
        next(rows.read([""]), None)  # a key that is never there: so all keys are noted
        return rows.names
