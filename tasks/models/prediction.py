"""From a table to one with predictions, in bounded memory.

Invariant: the result has the rows of the data in their order, each once, but for those that were to be left out: they
are in a table of their own, each with its reason. Both appear whole or not at all, the result last.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import ConfigurationError
from storage.folders import write_file
from storage.objects.s3.address import SCHEME as S3_SCHEME
from tasks.data.sources.formats import is_in_source
from tasks.models.table import ADVICE, Batch, Table, Wrong, bad_data, open_table
from training.export.encoding import encode_good_rows
from training.export.prediction import Predicted, predict_windows
from training.export.standalone.holdfast_inputs import Encoded, InputError
from training.export.standalone.holdfast_model import Model

FILE_COLUMN, ROW_COLUMN, LABEL_COLUMN, PROBABILITY = "file", "row", "predicted", "probability_"
OPTIONS = "correct or drop such rows; --truncate keeps the first tokens of those that are too long; "
OPTIONS += "--skip-bad ROWS.parquet leaves out what cannot be predicted, and lists it there"


class Counts(NamedTuple):
    """Rows that were predicted, and rows that were left out."""

    predicted: int
    left_out: int


@dataclass(frozen=True)
class Prediction:
    """What is to be predicted, and where to: `bad_rows` is the table for what is left out, None to refuse it."""

    model: Model
    source: str
    result: Path
    id_column: str | None
    bad_rows: Path | None = None

    def write(self, on_rows: Callable[[int, int | None], object]) -> Counts:
        """Write predictions for all rows of the table at `source`.

        The result has the id, or the row's number in its file where there are none, and then the file too where they
        are several; the label that is predicted, or the list of them; and the probability of each. `on_rows` is called
        after each window with how many rows are done, of how many where that is known. Raises `ContractError` for data
        that do not fit, `ConfigurationError`, and `StoreError`.
        """
        table = open_table(self.source, self.model.inputs, self.id_column)
        self._require_paths(table)
        tags = _tag_schema(table, self.model.classes)
        counts = Counts(0, 0)

        def fill(result: Path, bad_rows: Path | None) -> None:
            nonlocal counts
            schema = _schema(tags, self.model)
            with pq.ParquetWriter(result, schema) as writer, _BadRows(bad_rows, table.id_field) as refused:
                for predicted in predict_windows(self.model, self._encoded(table, tags, refused)):
                    writer.write_table(_table(predicted, schema))
                    counts = Counts(counts.predicted + len(predicted.labels), refused.count)
                    on_rows(sum(counts), table.num_rows)
                counts = counts._replace(left_out=refused.count)

        bad_rows = self.bad_rows
        if bad_rows is None:
            write_file(self.result.absolute(), lambda result: fill(result, None))
        else:
            out = bad_rows.absolute()
            write_file(self.result.absolute(), lambda result: write_file(out, lambda bad: fill(result, bad)))
        return counts

    def _require_paths(self, table: Table) -> None:
        """Raise `ConfigurationError` where what is written would replace what is read, now or next time."""
        written = {"RESULT": self.result} | ({} if self.bad_rows is None else {"ROWS of --skip-bad": self.bad_rows})
        if len({path.absolute() for path in written.values()}) < len(written):
            raise ConfigurationError(f"RESULT and ROWS of --skip-bad are the same file, {self.result}. Give another.")
        for name, path in written.items():
            if table.is_of(path):
                raise ConfigurationError(f"DATA and {name} are the same file, {path}. Give {name} another name.")
            if _would_be_read(path, self.source):
                raise ConfigurationError(
                    f"{name} would be in the folder DATA, {self.source}, and be read with it the next time. Give "
                    f"{name} another folder, or a name that begins with _."
                )

    def _encoded(self, table: Table, tags: pa.Schema, refused: "_BadRows") -> Iterator[tuple[pa.Table, Encoded]]:
        for batch in table.batches():
            encoded, left_out = self._encode(batch, refused)
            if encoded is not None:
                kept = [row for row in range(len(batch)) if row not in left_out]
                yield _tags(batch, tags, None if not left_out else kept), encoded

    def _encode(self, batch: Batch, refused: "_BadRows") -> tuple[Encoded | None, set[int]]:
        """The rows that can be predicted, and the numbers of the others, which are noted. Raises `ContractError`."""
        inputs = self.model.inputs
        if self.bad_rows is None:
            if batch.wrong:
                row = min(batch.wrong)
                raise _refusal(batch, row, batch.wrong[row])
            try:
                return inputs.encode(batch.columns) if len(batch) else None, set()
            except InputError as error:
                raise _refusal(batch, error.row, Wrong(error.column, error.expected, error.found)) from error
        read = [row for row in range(len(batch)) if row not in batch.wrong]
        columns = batch.columns
        if batch.wrong:
            columns = {name: [values[row] for row in read] for name, values in columns.items()}
        encoded, found = encode_good_rows(inputs, columns, len(read))
        reasons = {read[row]: Wrong(error.column, error.expected, error.found) for row, error in found}
        reasons |= batch.wrong
        refused.write(batch, dict(sorted(reasons.items())))
        return encoded, set(reasons)


def _refusal(batch: Batch, row: int | None, wrong: Wrong) -> Exception:
    where = "" if row is None else f" {batch.describe_row(row)}"
    problem = f"Column {wrong.column!r} has what the model does not take{where}"
    return bad_data(problem, wrong.expected, wrong.found, ADVICE if row is None else OPTIONS)


class _BadRows:
    """The table of the rows that are left out, if one is wanted; `count` is how many there are so far."""

    def __init__(self, path: Path | None, id_field: pa.Field | None) -> None:
        ids = [] if id_field is None else [id_field.with_name("id")]
        location = [pa.field("file", pa.string()), pa.field("row", pa.int64()), pa.field("line", pa.int64())]
        reasons = [pa.field(name, pa.string()) for name in Wrong._fields]
        self._schema = pa.schema([*location, *ids, *reasons])
        self._writer = None if path is None else pq.ParquetWriter(path, self._schema)
        self.count = 0

    def __enter__(self) -> "_BadRows":
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, batch: Batch, reasons: dict[int, Wrong]) -> None:
        """Note rows of a batch with their reasons."""
        if not reasons or self._writer is None:
            return
        rows = list(reasons)
        values: dict[str, Any] = {
            "file": [batch.file] * len(rows),
            "row": [batch.first_row + row for row in rows],
            "line": [None if batch.lines is None else batch.lines[row] for row in rows],
        }
        if batch.ids is not None:
            values["id"] = batch.ids.take(pa.array(rows))
        for index, name in enumerate(Wrong._fields):
            values[name] = [reason[index] for reason in reasons.values()]
        self._writer.write_table(pa.table(values, schema=self._schema))
        self.count += len(rows)


def _would_be_read(path: Path, source: str) -> bool:
    """Whether a file of this name is, or would be, one of those that a folder `source` has."""
    if source.startswith(f"{S3_SCHEME}://") or not Path(source).is_dir():
        return False
    folder, out = Path(source).resolve(), path.parent.resolve() / path.name
    return out.is_relative_to(folder) and is_in_source(out.relative_to(folder).as_posix())


def _tag_schema(table: Table, classes: list[str]) -> pa.Schema:
    """Columns that identify the rows of the result."""
    taken = {LABEL_COLUMN, *(PROBABILITY + name for name in classes)}
    if table.id_field is not None:
        return pa.schema([table.id_field.with_name("id") if table.id_field.name in taken else table.id_field])
    files = [pa.field(FILE_COLUMN, pa.string())] if len(table.files) > 1 else []
    return pa.schema([*files, pa.field(ROW_COLUMN, pa.int64())])


def _tags(batch: Batch, schema: pa.Schema, kept: list[int] | None) -> pa.Table:
    """Of the rows that are kept, or of all."""
    if batch.ids is not None:
        columns = [batch.ids]
    else:
        rows = pa.array(range(batch.first_row, batch.first_row + len(batch)), pa.int64())
        columns = [rows] if len(schema) == 1 else [pa.array([batch.file] * len(batch)), rows]
    found = pa.table(columns, schema=schema)
    return found if kept is None else found.take(pa.array(kept, pa.int64()))


def _schema(tags: pa.Schema, model: Model) -> pa.Schema:
    probabilities = [pa.field(PROBABILITY + name, pa.float64()) for name in model.classes]
    predicted = pa.list_(pa.string()) if model.outputs.answer == "labels" else pa.string()
    return pa.schema([*tags, pa.field(LABEL_COLUMN, predicted), *probabilities])


def _table(predicted: Predicted[pa.Table], schema: pa.Schema) -> pa.Table:
    tags = pa.concat_tables(predicted.tags)
    columns = [predicted.probabilities[:, index] for index in range(predicted.probabilities.shape[1])]
    return pa.table(
        [*tags.columns, pa.array(predicted.labels, schema.field(LABEL_COLUMN).type), *map(pa.array, columns)],
        schema=schema,
    )
