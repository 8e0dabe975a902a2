"""SQL of a sample as training will see it.

Invariant: what becomes of a row depends on the row, the classes, the statistics and the vocabularies alone.
"""

import pyarrow as pa

from storage.datasets import MISSING_INDEX, UNSEEN_INDEX, NumericColumn
from tasks.configuration import DataConfig
from tasks.data.database import place_sql
from tasks.data.sources.columns import literal
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

    That is what `samples_sql` gives, the row's place, and its split where the row alone decides it.
    """
    numeric, categorical = (
        (f"n{i}" for i in range(len(config.numeric))),
        (f"c{i}" for i in range(len(config.categorical))),
    )
    columns = ["id", "label", "split_key", *numeric, *categorical, f"{place_sql(config)} AS place"]
    columns += ["own_split"] if config.split.has_own_sources else []
    split = split_sql(config)
    return ", ".join(columns if split is None else [*columns, f"{split} AS split"])


def prepared_sql(config: DataConfig, classes: list[str], numeric: list[NumericColumn], has_body: bool = True) -> str:
    """SQL of every sample as training will see it, in no particular order; raw text is still text, tokens that the
    mask hides are still there, and each value of the metadata has a column of its own, as `METADATA` says. Without
    `has_body` there are neither text nor tokens, and for the id and the place there is `number`, which `dealt` must
    have."""
    listed = ", ".join(literal(name) for name in classes)
    values = [f"{_scaled_sql(i, column)}::FLOAT AS numeric{i}" for i, column in enumerate(numeric)]
    values += [f"(n{i} IS NULL)::FLOAT AS missing{i}" for i in range(len(numeric))]
    values += [
        f"CASE WHEN c{i} IS NULL THEN {MISSING_INDEX} ELSE coalesce(v{i}.index, {UNSEEN_INDEX}) END::INTEGER "
        f"AS categorical{i}"
        for i in range(len(config.categorical))
    ]
    joins = " ".join(f"LEFT JOIN vocabulary{i} v{i} ON v{i}.value = c{i}" for i in range(len(config.categorical)))
    # Not narrowed here: what the mask hides may be any number.
    body = "text" if config.text else "tokens, CAST(mask AS TINYINT[]) AS mask" if config.attention_mask else "tokens"
    own = f"id, {place_sql(config)} AS place, {body}" if has_body else "number"
    label = f"(list_position([{listed}], label) - 1)::INTEGER AS label"
    return f"SELECT {', '.join(['split', own, label, *values])} FROM dealt {joins}"


def _scaled_sql(index: int, column: NumericColumn) -> str:
    # A number in quotes is read to the last bit; without them DuckDB would take it for a decimal first.
    median, mean, deviation = (
        f"'{value!r}'::DOUBLE" for value in (column.median, column.mean, column.standard_deviation)
    )
    return f"((coalesce(n{index}, {median}) - {mean}) / {deviation})"
