"""Source files of other formats as Parquet files in a working folder: the columns that the configuration names.

Invariant: row n of such a file is row n of the user's, and it is a file of this one preparation: nothing looks for it
later. Every value was read before the first error about values is raised, so that it can give their number; of what
`look_at_rows` finds among the first rows the error says that these are the first.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.configuration.run import DataConfig
from tasks.data.readers.arrow_files import open_arrow_file, read_arrow_schema
from tasks.data.readers.lines import CsvRows, JsonRows, Lines, open_lines
from tasks.data.readers.values import Meaning, Times, meanings_of
from tasks.data.sources.columns import named_columns, read_each, require_columns, require_fitting
from tasks.data.sources.formats import ARROW, JSON_LINES, format_of
from tasks.data.sources.messages import broken_contract
from tasks.data.sources.source_file import SourceFile

BATCH_ROWS = 16_384
BATCH_BYTES = 8 * 1024**2
NUM_EXAMPLES = 3
COMPRESSION = "zstd"
# JSON can write half of such a pair, which is no character.
SURROGATE = re.compile("[\ud800-\udfff]")


def require_readable(files: list[SourceFile], config: DataConfig) -> None:
    """Raise `ContractError` if Arrow files differ, or do not fit, in their columns, by their schemas."""
    if format_of(files[0].name) == ARROW:
        require_fitting(files, read_each(read_arrow_schema, files), config)


def convert_file(
    file: SourceFile, config: DataConfig, path: Path, on_position: Callable[[int], None] = lambda _: None
) -> str | None:
    """Write the file's rows as Parquet to `path`; the kind of its times to split by, if it has any that are text.

    Raises `ContractError` for what cannot be read. `on_position` is called with the byte up to which the file is read.
    """
    converted = replace(file, parquet=path)
    if format_of(file.name) == ARROW:
        _convert_arrow(converted, config)
        return None
    meanings = meanings_of(config, format_of(file.name) == JSON_LINES)
    _convert_lines(converted, meanings, config, on_position)
    return next((meaning.parse.kind for meaning in meanings if isinstance(meaning.parse, Times)), None)


def look_at_rows(file: SourceFile, config: DataConfig, num_bytes: int) -> None:
    """Raise `ContractError` for what is wrong with the first rows of a file of lines: as many as have these bytes."""
    is_json = format_of(file.name) == JSON_LINES
    columns = [_Column(meaning) for meaning in meanings_of(config, is_json)]
    names = [column.meaning.column for column in columns]
    num_rows = 0
    with open_lines(file) as lines:
        rows = _open_rows(file, lines, config)
        for line, values in rows.read(names):
            num_rows += 1
            for column, value in zip(columns, values, strict=True):
                column.parse(value, line)
            if lines.num_bytes >= num_bytes:
                break
        else:
            if is_json and num_rows:
                require_columns(file, rows.names, config)
        is_whole = next(lines, None) is None
    _require_right_values(file, columns, f"{'' if is_whole else 'the first '}{num_rows:,}")


def require_one_kind_of_times(files: list[SourceFile], kinds: Sequence[str | None], config: DataConfig) -> None:
    """Raise `ContractError` unless all files write times in one way; `kinds` are as `convert_file` gave them.

    In Parquet they are numbers by then, which can all be compared, and mean different moments.
    """
    first = {kind: file.name for file, kind in reversed(list(zip(files, kinds, strict=True))) if kind is not None}
    if len(first) > 1:
        raise broken_contract(
            f"The files disagree on how times are written in column {config.split.column!r}.",
            "times without a zone, times with one, or whole numbers, the same in all files",
            ", ".join(f"{kind} in {name}" for kind, name in sorted(first.items())),
            "write these files in one way",
        )


def _convert_arrow(file: SourceFile, config: DataConfig) -> None:
    with (
        open_arrow_file(file, {column for column, _ in named_columns(config)}) as (schema, batches),
        pq.ParquetWriter(file.rows, schema, compression=COMPRESSION) as writer,
    ):
        for gathered in _gather(batches):
            writer.write_table(pa.Table.from_batches(gathered, schema), row_group_size=BATCH_ROWS)


def _gather(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Batches in lists of about the size of a row group: some programs write batches of a few rows."""
    gathered: list[pa.RecordBatch] = []
    num_rows = num_bytes = 0
    for batch in batches:
        gathered.append(batch)
        num_rows, num_bytes = num_rows + batch.num_rows, num_bytes + batch.nbytes
        if num_rows >= BATCH_ROWS or num_bytes > BATCH_BYTES:
            yield gathered
            gathered, num_rows, num_bytes = [], 0, 0
    if gathered:
        yield gathered


@dataclass
class _Column:
    """The values of a column since the last batch, and what did not fit in the whole file."""

    meaning: Meaning
    values: list[Any] = field(default_factory=list)
    num_wrong: int = 0
    num_lists: int = 0
    examples: list[str] = field(default_factory=list)

    def parse(self, value: Any, line: int) -> Any:
        """What the value means; None where it is missing, or does not fit, which is noted."""
        try:
            return None if value is None else self.meaning.parse(value)
        except ValueError:
            self.num_wrong += 1
            self.num_lists += isinstance(value, list)
            if len(self.examples) < NUM_EXAMPLES:
                self.examples.append(f"line {line:,} has {_shown(value)}")
            return None

    @property
    def has_labels(self) -> bool:
        """Whether a column with one label a row has lists of them."""
        return self.num_lists > 0 and self.meaning.role == "data.label"

    def take(self) -> pa.Array:
        values, self.values = self.values, []
        return pa.array(values, self.meaning.data_type)


def _convert_lines(
    file: SourceFile, meanings: list[Meaning], config: DataConfig, on_position: Callable[[int], None]
) -> None:
    columns = [_Column(meaning) for meaning in meanings]
    names = [meaning.column for meaning in meanings]
    schema = pa.schema([pa.field(meaning.column, meaning.data_type) for meaning in meanings])
    num_rows = num_bytes = 0
    with open_lines(file) as lines, pq.ParquetWriter(file.rows, schema, compression=COMPRESSION) as writer:
        rows = _open_rows(file, lines, config)
        for line, values in rows.read(names):
            num_rows += 1
            for column, value in zip(columns, values, strict=True):
                column.values.append(column.parse(value, line))
            if num_rows % BATCH_ROWS == 0 or lines.num_bytes - num_bytes > BATCH_BYTES:
                num_bytes = lines.num_bytes
                _write(writer, schema, columns)
                on_position(lines.position)
        _write(writer, schema, columns)
        if isinstance(rows, JsonRows) and num_rows:
            require_columns(file, rows.names, config)
    _require_right_values(file, columns, f"{num_rows:,}")


def _open_rows(file: SourceFile, lines: Lines, config: DataConfig) -> CsvRows | JsonRows:
    """The rows of these lines. Raises `ContractError` where a header lacks a column; JSON Lines have no header."""
    if format_of(file.name) == JSON_LINES:
        return JsonRows(lines)
    rows = CsvRows(lines)
    require_columns(file, rows.names, config)
    return rows


def _write(writer: pq.ParquetWriter, schema: pa.Schema, columns: list[_Column]) -> None:
    writer.write_batch(pa.record_batch([column.take() for column in columns], schema=schema))


def _require_right_values(file: SourceFile, columns: list[_Column], rows: str) -> None:
    column = next((column for column in columns if column.num_wrong), None)
    if column is None:
        return
    several = 'set data.kind = "multilabel" where a row has any number of labels, or ' if column.has_labels else ""
    missing = "leave out the key, or write null" if format_of(file.name) == JSON_LINES else "leave the field empty"
    raise broken_contract(
        f"Column {column.meaning.column!r} in {file.name} has values of the wrong kind.",
        f"{column.meaning.expected}, for {column.meaning.role}",
        f"{column.num_wrong:,} of {rows} rows of {file.location}: {'; '.join(column.examples)}",
        f"{several}correct these values; where a value is missing, {missing}",
    )


def _shown(value: Any) -> str:
    if isinstance(value, str) and (half := SURROGATE.search(value)):
        return f"half of a surrogate pair, {half[0]!a}, at character {half.start() + 1:,}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
