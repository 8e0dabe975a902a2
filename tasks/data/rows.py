"""A sample as training will see it: what SQL makes of a row, and the indices of categories in their vocabularies.

Invariant: what becomes of a row depends on the row, the classes, the statistics and the vocabularies alone.
"""

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from storage.datasets import (
    FIRST_VOCABULARY_INDEX,
    MISSING_INDEX,
    UNSEEN_INDEX,
    CategoricalColumn,
    NumericColumn,
)
from tasks.configuration.run import DataConfig
from tasks.data.database import hash_sql, order_key_sql
from tasks.data.sources.label_registry import form_of
from tasks.data.split import split_sql

# Values of a row on the way to shards, and their types: numeric0, numeric1... A column of each is put in order several
# times as fast as one of lists.
METADATA = {"numeric": pa.float32(), "missing": pa.float32(), "categorical": pa.int32()}


def metadata_columns(config: DataConfig) -> dict[str, list[str]]:
    """The columns of each kind of `METADATA`, in order."""
    num_columns = {
        "numeric": len(config.numeric),
        "missing": len(config.numeric),
        "categorical": len(config.categorical),
    }
    return {kind: [f"{kind}{i}" for i in range(num_columns[kind])] for kind in METADATA}


def extracted_columns(config: DataConfig) -> str:
    """SQL of all that is known of a row before the others are, but text and tokens.

    That is what `samples_sql` gives, the row's order key, its split where the row alone decides it, and `text_key`, a
    number that is the same for equal texts or lists of tokens.
    """
    numeric, categorical = (
        (f"n{i}" for i in range(len(config.numeric))),
        (f"c{i}" for i in range(len(config.categorical))),
    )
    columns = ["id", "label", "split_key", *numeric, *categorical, f"{order_key_sql(config)} AS order_key"]
    columns += ["weight"] if config.weight else []
    columns += ["own_split"] if config.split.has_own_sources else []
    # Of tokens DuckDB's own hash: their MD5 would take as long as all else. One type, as equal lists may have two.
    columns.append(f"{hash_sql('text') if config.text else 'hash(TRY_CAST(tokens AS INTEGER[]))'} AS text_key")
    split = split_sql(config)
    return ", ".join(columns if split is None else [*columns, f"{split} AS split"])


def prepared_sql(
    config: DataConfig,
    classes: list[str],
    numeric: list[NumericColumn],
    mean_weight: float | None = None,
    has_body: bool = True,
) -> str:
    """SQL of every sample, in no particular order: as training will see it, but that raw text is still text, that
    tokens which the mask hides are still there, and that categories are still the values `c0`..., which
    `index_categories` takes. Each number of the metadata has a column of its own, listed in `METADATA`. Without
    `has_body` there are neither text, tokens nor categories, and for the id and the order key there is `number`, which
    `assigned` must have. With a mean there is `weight`, divided by it."""
    values = [f"{_scaled_sql(i, column)}::FLOAT AS numeric{i}" for i, column in enumerate(numeric)]
    values += [f"(n{i} IS NULL)::FLOAT AS missing{i}" for i in range(len(numeric))]
    values += [f"(weight / {_double_sql(mean_weight)})::FLOAT AS weight"] if mean_weight is not None else []
    # Not narrowed here: what the mask hides may be any number.
    body = "text" if config.text else "tokens, CAST(mask AS TINYINT[]) AS mask" if config.attention_mask else "tokens"
    categories = [f"c{i}" for i in range(len(config.categorical))]
    own = ["id", f"{order_key_sql(config)} AS order_key", body, *categories] if has_body else ["number"]
    label = f"{form_of(config).indices_sql(classes)} AS label"
    return f"SELECT {', '.join(['split', *own, label, *values])} FROM assigned"


def index_categories(
    categories: Sequence[CategoricalColumn], column_of: Callable[[str], pa.Array | pa.ChunkedArray]
) -> dict[str, pa.Array | pa.ChunkedArray]:
    """The columns `categorical0`...: for each value of `c0`... its index in the vocabulary.

    Arrow looks them up, one column after the other: a join of DuckDB for each column takes memory for all at once.
    """
    return {f"categorical{i}": _indices(column_of(f"c{i}"), column) for i, column in enumerate(categories)}


def _indices(values: pa.Array | pa.ChunkedArray, column: CategoricalColumn) -> pa.Array | pa.ChunkedArray:
    first, unseen, missing = (pa.scalar(i, pa.int32()) for i in (FIRST_VOCABULARY_INDEX, UNSEEN_INDEX, MISSING_INDEX))
    found = pc.index_in(values, value_set=pa.array(column.vocabulary, pa.string()))
    known = pc.fill_null(pc.add(found, first), unseen)
    return pc.if_else(values.is_null(), missing, known)


def _scaled_sql(index: int, column: NumericColumn) -> str:
    median, mean, deviation = map(_double_sql, (column.median, column.mean, column.standard_deviation))
    return f"((coalesce(n{index}, {median}) - {mean}) / {deviation})"


def _double_sql(value: float) -> str:
    """A number in quotes is read to the last bit; without them DuckDB would take it for a decimal first."""
    return f"'{value!r}'::DOUBLE"
