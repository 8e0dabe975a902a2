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
        if result.exists() and result.samefile(data):
            raise ConfigurationError(f"DATA and RESULT are the same file, {data}. Give RESULT another name.")
        _require_columns(model.inputs, file.schema_arrow, data)
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


def _open(data: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(data)
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
            yield tag, {name: batch.column(name).to_pylist() for name in inputs.columns}
    except (pa.ArrowException, OSError) as error:
        raise _bad_data(data, "cannot be read", "a whole Parquet file", str(error).partition("\n")[0]) from error


def _require_columns(inputs: Inputs, schema: pa.Schema, data: Path) -> None:
    """Raise `ContractError` unless each column is there once, with a type that fits its meaning."""
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
