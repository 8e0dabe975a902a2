"""Which split a row belongs to: training, validation or test.

Invariant: the answer depends on the row, the seed and, for a split by time, on the times of all rows of data.source;
where a column names the row's split, or its file is of a split's own source, on this alone. It never depends on the
order of rows or files, the number of threads or DuckDB's version (MD5 stays what it is, `hash()` may not).
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import duckdb

from storage.datasets import SPLITS, SplitRecord, Target, WeightColumn
from tasks.configuration.run import DataConfig
from tasks.data.class_order import order_labels
from tasks.data.contract.rules import given_split_sql, kept_tokens_sql
from tasks.data.database import HASH_VALUES, hash_sql
from tasks.data.label_form import describe_form, find_form
from tasks.data.labels import NUMBERS, WORDS, domain_of, label_domain, may_be_without_classes, name_of
from tasks.data.rare_classes import OTHER, Counts, describe_rows, find_rare, treat_counts, treated_sql
from tasks.data.sources.columns import SourceTable
from tasks.data.sources.label_registry import form_of
from tasks.data.sources.messages import broken_contract
from tasks.data.sql import literal, only_row

TRAIN, VALIDATION, TEST = (SPLITS.index(name) for name in ("train", "validation", "test"))
NUM_VALUES_SHOWN = 10
# A column with more is not the target but, for instance, an id; all of them would be listed in memory.
MOST_CLASSES = 10_000


@dataclass(frozen=True)
class Assignment:
    """What the splits hold: the classes in order, the rows of each class in each split, the rows of each split.

    `split_sql` is SQL of the index of a row's split over the columns of `samples`. `rare` are the labels that
    `rare_classes` treats otherwise, with their rows in each split; the other figures are of what came of that.
    `mean_weight` is that of the training split's rows, None where rows have no weight.
    """

    classes: list[str]
    class_counts: list[list[int]]
    num_rows: list[int]
    split_sql: str
    rare: Counts = field(default_factory=dict)
    mean_weight: float | None = None


def assign_samples(connection: duckdb.DuckDBPyConnection, table: SourceTable, config: DataConfig) -> Assignment:
    """Make the view `assigned` (`samples` and an integer `split`). Raises `ContractError` for a split without rows.

    Where the row alone decides its split, `samples` has it already.
    """
    split, columns = split_sql(config), "*"
    if split is None:
        split = _time_split_sql(connection, table, config)
        columns = f"*, {split} AS split"
    connection.execute(f"CREATE TEMP VIEW assigned AS SELECT {columns} FROM samples")
    found = _count_labels(connection, config)
    _require_few_classes(len(found), config)
    _require_one_kind(found.keys(), config)
    num_rows = _count_rows(connection)
    _require_rows(num_rows, connection, config)
    counts: Counts = {label: [0] * len(SPLITS) for label in domain_of(found, config) or []} | found
    rare = find_rare(counts, config)
    treated = treat_counts(counts, rare, config)
    if rare:
        rows = treated_sql(f"(SELECT {columns} FROM samples)", rare, config)
        connection.execute(f"CREATE OR REPLACE TEMP VIEW assigned AS FROM {rows}")
        treated, num_rows = treated | _count_labels(connection, config), _count_rows(connection)
    classes = _order_classes(treated, config)
    _require_classes(classes, treated, config)
    class_counts = [[treated[name][split_index] for name in classes] for split_index in range(len(SPLITS))]
    return Assignment(classes, class_counts, num_rows, split, {label: counts[label] for label in rare})


def _count_labels(connection: duckdb.DuckDBPyConnection, config: DataConfig) -> Counts:
    """The rows of each label that there is in each split."""
    labels = form_of(config).each_sql("assigned")
    query = f"SELECT split, label, count(*) FROM ({labels}) GROUP BY ALL LIMIT {len(SPLITS) * MOST_CLASSES + 1}"
    counts: Counts = {}
    for split_index, label, count in connection.execute(query).fetchall():
        counts.setdefault(str(label), [0] * len(SPLITS))[int(split_index)] = int(count)
    return counts


def _count_rows(connection: duckdb.DuckDBPyConnection) -> list[int]:
    """The rows of each split."""
    found = dict(connection.execute("SELECT split, count(*) FROM assigned GROUP BY split").fetchall())
    return [int(found.get(split_index, 0)) for split_index in range(len(SPLITS))]


def _order_classes(counts: Counts, config: DataConfig) -> list[str]:
    """The classes in the order of the model's outputs; one made of rare ones is the last where the order is given."""
    given = domain_of(counts, config)
    if given is None:
        return order_labels(counts)
    return [name for name in given if name in counts] + [OTHER] * (OTHER in counts and OTHER not in given)


def describe_target(assignment: Assignment, config: DataConfig) -> Target:
    """What is predicted, with the names of the classes and the rows of each in the training split."""
    names = [name_of(label, config) for label in assignment.classes]
    counts = assignment.class_counts[TRAIN]
    return Target(kind=config.kind, column=config.target_name, classes=names, class_counts=counts)


def describe_weight(assignment: Assignment, config: DataConfig) -> WeightColumn | None:
    """The column with the weights, if there is one."""
    if config.weight is None or assignment.mean_weight is None:
        return None
    return WeightColumn(name=config.weight, mean=assignment.mean_weight)


def with_class_counts(splits: dict[str, SplitRecord], class_counts: list[list[int]]) -> dict[str, SplitRecord]:
    """The splits, in the order of `SPLITS`, with the rows of each class."""
    return {
        name: split.model_copy(update={"class_counts": counts})
        for (name, split), counts in zip(splits.items(), class_counts, strict=True)
    }


def split_sql(config: DataConfig) -> str | None:
    """SQL of the index of a row's split, where it depends on the row alone; None for a split by time."""
    if config.split.by == "time":
        return None
    return _own_first(given_split_sql(config) if config.split.by == "given" else _hash_split_sql(config), config)


def _own_first(rule: str, config: DataConfig) -> str:
    """A row of a source that a split has for itself is in this split, whatever the rule for the others gives."""
    return f"coalesce(own_split, {rule})" if config.split.has_own_sources else rule


def _shares(config: DataConfig) -> dict[int, float]:
    """The splits that get a share of the rows of data.source, and the share: first of the smallest hash, or newest."""
    shares = {TEST: config.split.test_fraction, VALIDATION: config.split.validation_fraction}
    return {split: share for split, share in shares.items() if SPLITS[split] in config.split.splits_of_source}


def _hash_split_sql(config: DataConfig) -> str:
    tokens = f"array_to_string({kept_tokens_sql(config)}, ' ')"
    keys = {"id": "id", "text": "text" if config.text else tokens, "column": "CAST(split_key AS VARCHAR)"}
    key = keys[config.split.by]
    hashed = hash_sql(f"'split:{config.seed}:' || {key}")
    cases, end = [], 0
    for split, share in _shares(config).items():
        end += int(share * HASH_VALUES)
        cases.append(f"WHEN {hashed} < {end} THEN {split}")
    return f"CASE {' '.join(cases)} ELSE {TRAIN} END" if cases else str(TRAIN)


def _time_split_sql(connection: duckdb.DuckDBPyConnection, table: SourceTable, config: DataConfig) -> str:
    """Exact quantiles. Rows of one time stay together: they all go to the newer side of a cut."""
    num_rows = sum(count for file, count in zip(table.files, table.num_rows, strict=True) if file.split is None)
    cases, num_newer = [], 0
    for split, share in _shares(config).items():
        num_newer += round(num_rows * share)
        first = _time_at(connection, min(num_rows - num_newer, num_rows - 1), config)
        cases.append(f"WHEN split_key >= {first} THEN {split}")
    return _own_first(f"CASE {' '.join(cases)} ELSE {TRAIN} END", config)


def _time_at(connection: duckdb.DuckDBPyConnection, offset: int, config: DataConfig) -> str:
    """SQL of the time of the row of data.source that has so many older ones before it."""
    text, kind = only_row(
        connection,
        "SELECT CAST(split_key AS VARCHAR), typeof(split_key) "
        f"FROM (SELECT split_key FROM {_samples_of_source(config)} ORDER BY split_key LIMIT 1 OFFSET {offset})",
    )
    return f"CAST({literal(text)} AS {kind})"


def _samples_of_source(config: DataConfig) -> str:
    """SQL of the rows of data.source."""
    return "(FROM samples WHERE own_split IS NULL)" if config.split.has_own_sources else "samples"


def _require_rows(num_rows: list[int], connection: duckdb.DuckDBPyConnection, config: DataConfig) -> None:
    empty = [name for name, count in zip(SPLITS, num_rows, strict=True) if count == 0]
    if not empty:
        return
    found = ", ".join(f"{name} {count:,}" for name, count in zip(SPLITS, num_rows, strict=True))
    if config.split.by == "given":
        where = f"as column {config.split.column!r} says: {_values_found(connection, config)}"
        remedy = (
            f"add rows of the {' and the '.join(empty)} split, correct data.split.train_values, validation_values and "
            'test_values, or let Holdfast split the rows (data.split.by = "id")'
        )
    else:
        by_text = config.split.by == "text" and config.body
        where = f"split by {by_text or config.split.column or config.id or 'row number'!s}"
        remedy = "give more rows, change the fractions in data.split, or split by another column"
    raise broken_contract(
        f"The {' and the '.join(empty)} split would be empty.", "rows in each split", f"{found} ({where})", remedy
    )


def _values_found(connection: duckdb.DuckDBPyConnection, config: DataConfig) -> str:
    """The values of the column that names the splits, the most frequent first, each with its rows."""
    named = f"SELECT CAST(split_key AS VARCHAR) AS value, count(*) AS n FROM {_samples_of_source(config)}"
    query = f"{named} GROUP BY 1 ORDER BY n DESC, value"
    values = connection.execute(f"{query} LIMIT {NUM_VALUES_SHOWN + 1}").fetchall()
    shown = ", ".join(f"{value!r} in {count:,} rows" for value, count in values[:NUM_VALUES_SHOWN])
    return shown + (" and others" if len(values) > NUM_VALUES_SHOWN else "")


def _require_few_classes(num_classes: int, config: DataConfig) -> None:
    if num_classes > MOST_CLASSES:
        raise broken_contract(
            f"Column {config.target_name!r} has too many classes.",
            f"at most {MOST_CLASSES:,} distinct values",
            f"{num_classes:,} or more",
            "check that data.label names the target",
        )


def _require_one_kind(labels: AbstractSet[str], config: DataConfig) -> None:
    """A binary target whose labels are not configured may have either kind."""
    is_open = config.kind == "binary" and label_domain(config) is None
    if is_open and labels & set(NUMBERS) and labels & set(WORDS):
        raise broken_contract(
            f"Column {config.target_name!r} has labels of two kinds.",
            "0 and 1, or true and false, in all rows",
            ", ".join(map(repr, sorted(labels))),
            "write them in one way",
        )


def _require_classes(classes: list[str], counts: Counts, config: DataConfig) -> None:
    if len(classes) < 2:
        raise broken_contract(
            f"Column {config.target_name!r} has one class only.",
            "two classes or more",
            f"{classes[0]!r} alone" if classes else "no label in any row",
            "check that data.label names the target",
        )
    absent = [name for name in classes if counts[name][TRAIN] == 0]
    if absent:
        treated = (
            ', set data.rare_classes = "drop" to leave their rows out or "other" to make one class of all that a split '
            "has no row of"
        )
        remedy = (
            f"give more rows of these classes, take them out of the data (and of data.classes)"
            f"{treated if may_be_without_classes(config) else ''}, or change data.split"
        )
        described = "".join(f"{sentence} If they are classes: " for sentence in describe_form(find_form(classes)))
        raise broken_contract(
            f"Column {config.target_name!r}: the training split has no row of {len(absent)} of {len(classes)} classes.",
            "every class in the training split",
            f"none of {describe_rows(absent, counts, config)}",
            f"{described}{remedy}",
        )
