"""Which split a row belongs to: training, validation or test.

Invariant: the answer depends on the row, the seed and, for a split by time, on the times of all rows; never on the
order of rows or files, the number of threads or DuckDB's version (MD5 stays what it is, `hash()` may not).
"""

from dataclasses import dataclass

import duckdb

from storage.datasets import SPLITS
from tasks.configuration import DataConfig
from tasks.data.class_order import order_labels
from tasks.data.sources.columns import SourceTable, broken_contract
from tasks.data.sources.rules import label_domain

TRAIN, VALIDATION, TEST = (SPLITS.index(name) for name in ("train", "validation", "test"))
HASH_VALUES = 2**64


@dataclass(frozen=True)
class Dealt:
    """What the splits hold: the classes in order, the rows of each in the training split, the rows of each split."""

    classes: list[str]
    class_counts: list[int]
    num_rows: list[int]


def deal_samples(connection: duckdb.DuckDBPyConnection, table: SourceTable, config: DataConfig) -> Dealt:
    """Make the view `dealt` (`samples` and an integer `split`). Raises `ContractError` for a split without rows."""
    split = _time_split_sql(connection, table, config) if config.split.by == "time" else _hash_split_sql(config)
    connection.execute(f"CREATE TEMP VIEW dealt AS SELECT *, {split} AS split FROM samples")
    found = connection.execute("SELECT split, label, count(*) FROM dealt GROUP BY ALL").fetchall()
    counts = {(int(split_index), str(label)): int(count) for split_index, label, count in found}
    num_rows = [
        sum(count for (split_index, _), count in counts.items() if split_index == i) for i in range(len(SPLITS))
    ]
    _require_rows(num_rows, config)
    classes = label_domain(config) or order_labels({label for _, label in counts}, config)
    class_counts = [counts.get((TRAIN, name), 0) for name in classes]
    _require_classes(classes, class_counts, counts, config)
    return Dealt(classes, class_counts, num_rows)


def _hash_split_sql(config: DataConfig) -> str:
    key = "id" if config.split.by == "id" else "CAST(split_key AS VARCHAR)"
    hashed = f"md5_number_lower('split:{config.seed}:' || {key})"
    test = int(config.split.test_fraction * HASH_VALUES)
    validation = test + int(config.split.validation_fraction * HASH_VALUES)
    return f"CASE WHEN {hashed} < {test} THEN {TEST} WHEN {hashed} < {validation} THEN {VALIDATION} ELSE {TRAIN} END"


def _time_split_sql(connection: duckdb.DuckDBPyConnection, table: SourceTable, config: DataConfig) -> str:
    """Exact quantiles. Rows of one time stay together: they all go to the newer side of a cut."""
    num_test = round(table.num_rows_total * config.split.test_fraction)
    num_newer = num_test + round(table.num_rows_total * config.split.validation_fraction)
    for name, num_behind in (("test_from", num_test), ("validation_from", num_newer)):
        offset = min(table.num_rows_total - num_behind, table.num_rows_total - 1)
        connection.execute(
            f"CREATE TEMP TABLE {name} AS SELECT split_key FROM samples ORDER BY split_key LIMIT 1 OFFSET {offset}"
        )
    return (
        f"CASE WHEN split_key >= (SELECT split_key FROM test_from) THEN {TEST} "
        f"WHEN split_key >= (SELECT split_key FROM validation_from) THEN {VALIDATION} ELSE {TRAIN} END"
    )


def _require_rows(num_rows: list[int], config: DataConfig) -> None:
    empty = [name for name, count in zip(SPLITS, num_rows, strict=True) if count == 0]
    if not empty:
        return
    found = ", ".join(f"{name} {count:,}" for name, count in zip(SPLITS, num_rows, strict=True))
    raise broken_contract(
        f"The {' and the '.join(empty)} split would be empty.",
        "rows in each split",
        f"{found} (split by {config.split.column or config.id or 'row number'!s})",
        "give more rows, change the fractions in data.split, or split by another column",
    )


def _require_classes(
    classes: list[str], class_counts: list[int], counts: dict[tuple[int, str], int], config: DataConfig
) -> None:
    if len(classes) < 2:
        raise broken_contract(
            f"Column {config.label!r} has one class only.",
            "two classes or more",
            f"{classes[0]!r} in every row",
            "check that data.label names the target",
        )
    absent = [name for name, count in zip(classes, class_counts, strict=True) if count == 0]
    if absent:
        found = [
            f"{name!r} ({sum(n for (_, label), n in counts.items() if label == name):,} in all)" for name in absent[:10]
        ]
        raise broken_contract(
            f"Column {config.label!r}: the training split has no row of {len(absent)} of {len(classes)} classes.",
            "every class in the training split",
            f"none of {', '.join(found)}",
            "give more rows of these classes, take them out of the data (and of data.classes), or change data.split",
        )
