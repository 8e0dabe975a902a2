"""SQL of a sample as training will see it.

Invariant: what becomes of a row depends on the row, the classes, the statistics and the vocabularies alone.
"""

from storage.datasets import MISSING_INDEX, UNSEEN_INDEX, NumericColumn
from tasks.configuration import DataConfig
from tasks.data.sources.columns import literal


def prepared_sql(config: DataConfig, classes: list[str], numeric: list[NumericColumn], has_body: bool = True) -> str:
    """SQL of every sample as training will see it, in no particular order; raw text is still text, and tokens that
    the mask hides are still there. Without `has_body` there are neither text nor tokens."""
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
    body = f"{body}, " if has_body else ""
    return (
        f"SELECT split, id, (list_position([{listed}], label) - 1)::INTEGER AS label, {body}"
        f"CAST([{', '.join(scaled)}] AS FLOAT[]) AS numeric, CAST([{', '.join(missing)}] AS FLOAT[]) AS missing, "
        f"CAST([{', '.join(indices)}] AS INTEGER[]) AS categorical FROM dealt {joins}"
    )


def _scaled_sql(index: int, column: NumericColumn) -> str:
    # A number in quotes is read to the last bit; without them DuckDB would take it for a decimal first.
    median, mean, deviation = (
        f"'{value!r}'::DOUBLE" for value in (column.median, column.mean, column.standard_deviation)
    )
    return f"(coalesce(n{index}, {median}) - {mean}) / {deviation}"
