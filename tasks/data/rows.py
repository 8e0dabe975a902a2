"""SQL of a sample as training will see it.

Invariant: what becomes of a row depends on the row, the classes, the statistics and the vocabularies alone.
"""

from storage.datasets import MISSING_INDEX, UNSEEN_INDEX, NumericColumn
from tasks.configuration import DataConfig
from tasks.data.database import place_sql
from tasks.data.sources.columns import literal
from tasks.data.split import split_sql


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
    """SQL of every sample as training will see it, in no particular order; raw text is still text, and tokens that
    the mask hides are still there. Without `has_body` there are neither text nor tokens, and for the id and the place
    there is `number`, which `dealt` must have."""
    listed = ", ".join(literal(name) for name in classes)
    scaled = [_scaled_sql(i, column) for i, column in enumerate(numeric)]
    missing = [f"(n{i} IS NULL)::INTEGER" for i in range(len(numeric))]
    indices = [
        f"CASE WHEN c{i} IS NULL THEN {MISSING_INDEX} ELSE coalesce(v{i}.index, {UNSEEN_INDEX}) END"
        for i in range(len(config.categorical))
    ]
    joins = " ".join(f"LEFT JOIN vocabulary{i} v{i} ON v{i}.value = c{i}" for i in range(len(indices)))
    tokens = "CAST(tokens AS INTEGER[]) AS tokens"
    body = "text" if config.text else f"{tokens}, CAST(mask AS TINYINT[]) AS mask" if config.attention_mask else tokens
    own = f"id, {place_sql(config)} AS place, {body}" if has_body else "number"
    return (
        f"SELECT split, {own}, (list_position([{listed}], label) - 1)::INTEGER AS label, "
        f"CAST([{', '.join(scaled)}] AS FLOAT[]) AS numeric, CAST([{', '.join(missing)}] AS FLOAT[]) AS missing, "
        f"CAST([{', '.join(indices)}] AS INTEGER[]) AS categorical FROM dealt {joins}"
    )


def _scaled_sql(index: int, column: NumericColumn) -> str:
    # A number in quotes is read to the last bit; without them DuckDB would take it for a decimal first.
    median, mean, deviation = (
        f"'{value!r}'::DOUBLE" for value in (column.median, column.mean, column.standard_deviation)
    )
    return f"(coalesce(n{index}, {median}) - {mean}) / {deviation}"
