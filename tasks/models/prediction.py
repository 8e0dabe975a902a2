"""From a Parquet file to one with predictions, in bounded memory.

Invariant: the result has the rows of the data in their order, each once, and appears whole or not at all. Columns are
named, and typed, as in the data that the model was trained on.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import ConfigurationError, ContractError
from storage.folders import write_file
from tasks.data.sources.columns import FITTING, NOTHING, family_of
from training.predicting.windows import Predicted, predict_windows
from training.standalone.holdfast_inputs import Inputs
from training.standalone.holdfast_model import Model

BATCH_ROWS = 1024
READ_BYTES = 1 << 20
ROW_COLUMN, LABEL_COLUMN, PROBABILITY = "row", "predicted", "probability_"
Batch = tuple[pa.Array, dict[str, list[Any]]]


def predict_file(
    model: Model, data: Path, result: Path, id_column: str | None, on_rows: Callable[[int, int], object]
) -> int:
    """Write predictions for all rows of `data`; their number.

    The result has `id_column`, or the row's number where the data have no such column; the label that is predicted, and
    the probability of each. `on_rows` is told after each window how many rows are done, of how many. Raises
    `ContractError` for data that do not fit, `ConfigurationError`, and `StoreError`.
    """
    with _open(data) as file:
        if _is_same(result, data):
            raise ConfigurationError(f"DATA and RESULT are the same file, {data}. Give RESULT another name.")
        _require_columns(model.inputs, id_column, file.schema_arrow, data)
        has_id = id_column is not None and id_column in file.schema_arrow.names
        tag = file.schema_arrow.field(id_column) if has_id else pa.field(ROW_COLUMN, pa.int64())
        total: int = file.metadata.num_rows

        batches = _batches(file, model.inputs, tag.name if has_id else None, data)

        def fill(path: Path) -> None:
            schema, done = _schema(tag, model.classes), 0
            with pq.ParquetWriter(path, schema) as writer:
                for predicted in predict_windows(model, batches):
                    writer.write_table(_table(predicted, schema))
                    done += len(predicted.labels)
                    on_rows(done, total)

        write_file(result.absolute(), fill)
        return total


def _is_same(result: Path, data: Path) -> bool:
    """False also where `result` cannot be looked at: then it cannot be written, and that says more."""
    try:
        return result.samefile(data)
    except OSError:
        return False


def _open(data: Path) -> pq.ParquetFile:
    try:
        # Whole columns of a row group, or buffers that are filled ahead, would stay in memory.
        return pq.ParquetFile(data, pre_buffer=False, buffer_size=READ_BYTES)
    except FileNotFoundError as error:
        raise ConfigurationError(f"There is no file {data}. Give a Parquet file.") from error
    except (pa.ArrowException, OSError) as error:
        raise _bad_data(data, "cannot be read", "a whole Parquet file", str(error).partition("\n")[0]) from error


def _batches(file: pq.ParquetFile, inputs: Inputs, id_column: str | None, data: Path) -> Iterator[Batch]:
    names, first = list(dict.fromkeys([*inputs.columns, *([id_column] if id_column else [])])), 0
    try:
        for batch in file.iter_batches(BATCH_ROWS, columns=names):
            tag = pa.array(range(first, first + len(batch))) if id_column is None else batch.column(id_column)
            first += len(batch)
            yield tag, {name: _values(batch, name, data) for name in inputs.columns}
    except (pa.ArrowException, OSError) as error:
        raise _bad_data(data, "cannot be read", "a whole Parquet file", str(error).partition("\n")[0]) from error


def _values(batch: pa.RecordBatch, name: str, data: Path) -> list[Any]:
    """Raises `ContractError` for bytes that are no text, which Arrow reads without a look."""
    try:
        return list(batch.column(name).to_pylist())
    except UnicodeDecodeError as error:
        raise _bad_data(data, f"has bytes in column {name!r} that are no text", "text in UTF-8", str(error)) from error


def _require_columns(inputs: Inputs, id_column: str | None, schema: pa.Schema, data: Path) -> None:
    """Raise `ContractError` unless each column is there once, with a fitting type, and that of the ids at most once."""
    if id_column is not None and schema.names.count(id_column) > 1:
        raise _bad_data(
            data, f"has more than one column {id_column!r}", "one column of this name, for the ids", "several"
        )
    for name, role in _roles(inputs):
        if schema.names.count(name) != 1:
            problem = f"has {'more than one' if name in schema.names else 'no'} column {name!r}"
            shown = f"the columns {', '.join(map(repr, schema.names[:12]))}"
            raise _bad_data(data, problem, f"one column of this name, for {role}", shown)
        kind = schema.field(name).type
        if family_of(kind) not in (*FITTING[role], NOTHING):
            expected = f"{' or '.join(FITTING[role])}, for {role}"
            raise _bad_data(data, f"has a column {name!r} of the wrong type", expected, str(kind))


def _roles(inputs: Inputs) -> list[tuple[str, str]]:
    body = {"text": inputs.text, "tokens": inputs.tokens, "attention_mask": inputs.attention_mask}
    columns = [(name, role) for role, name in body.items() if name is not None]
    columns += [(column["name"], "numeric") for column in inputs.numeric]
    return columns + [(column["name"], "categorical") for column in inputs.categorical]


def _schema(tag: pa.Field, classes: list[str]) -> pa.Schema:
    probabilities = [pa.field(PROBABILITY + name, pa.float64()) for name in classes]
    predicted = [pa.field(LABEL_COLUMN, pa.string()), *probabilities]
    taken = {field.name for field in predicted}
    return pa.schema([tag.with_name("id") if tag.name in taken else tag, *predicted])


def _table(predicted: Predicted[pa.Array], schema: pa.Schema) -> pa.Table:
    tags = pa.chunked_array(predicted.tags, schema.field(0).type)
    columns = [predicted.probabilities[:, place] for place in range(predicted.probabilities.shape[1])]
    return pa.table([tags, pa.array(predicted.labels), *map(pa.array, columns)], schema=schema)


def _bad_data(data: Path, problem: str, expected: str, found: str) -> ContractError:
    lines = (f"{data} {problem}.", f"  expected: {expected}", f"  found: {found}")
    advice = "  what to do: bring the data into the form of the model's training data; its README.md lists the columns"
    return ContractError("\n".join((*lines, advice, "No result was written.")))
