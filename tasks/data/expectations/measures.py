"""The measures of a data set: one number for each property of all its rows, by name, with words for a person.

Invariant: they follow from the data and the configuration alone. The names are the columns of the table of one row that
Great Expectations validates, so a suite that a person wrote refers to them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import duckdb

from storage.datasets import SPLITS, CategoricalColumn
from tasks.configuration.run import DataConfig
from tasks.data.contract.sampled import LENGTH
from tasks.data.labels import name_of
from tasks.data.split import TRAIN, Assignment
from tasks.data.sql import only_row


class Measure(NamedTuple):
    """A number, and what was found in words; where these are empty the number is shown."""

    value: float
    words: str = ""


Measures = dict[str, Measure]
# Measures that are shares, by how their names begin.
SHARES = (
    *("missing_share.", "class_share.", "repeated_texts."),
    *("drift.labels", "drift.missing_share.", "drift.new_categories."),
)


def measure_data(
    connection: duckdb.DuckDBPyConnection,
    dealt: Assignment,
    categorical: Sequence[CategoricalColumn],
    shared: Mapping[str, Mapping[str, int]],
    config: DataConfig,
) -> Measures:
    """All measures of the data, of the views `samples` and `sampled`; `shared` is that of `count_shared_texts`."""
    measures = {"rows": Measure(sum(dealt.num_rows))}
    measures |= {f"rows.{name}": Measure(count) for name, count in zip(SPLITS, dealt.num_rows, strict=True)}
    measures |= _of_classes(dealt, config) | _of_lengths(connection) | _missing(connection, config)
    measures |= {f"categories.{column.name}": Measure(len(column.vocabulary)) for column in categorical}
    for split, found in shared.items():
        measures[f"repeated_texts.{split}"] = _share(found["rows"], found["in_training"])
    return measures


def _of_classes(dealt: Assignment, config: DataConfig) -> Measures:
    counts = {name: sum(of_splits) for name, *of_splits in zip(dealt.classes, *dealt.class_counts, strict=True)}
    largest = max(counts, key=lambda name: counts[name])
    share = counts[largest] / sum(dealt.num_rows)
    words = f"{name_of(largest, config)!r} in {counts[largest]:,} of {sum(dealt.num_rows):,} rows ({share:.1%})"
    return {
        "classes": Measure(len(counts)),
        "rows_per_class": Measure(sum(dealt.class_counts[TRAIN]) / len(counts)),
        "class_share.largest": Measure(share, words),
    }


def _of_lengths(connection: duckdb.DuckDBPyConnection) -> Measures:
    quantiles = ", ".join(f"quantile_disc({LENGTH}, {share})" for share in (0.5, 0.99))
    found = only_row(connection, f"SELECT {quantiles}, max({LENGTH}) FROM sampled")
    names = ("length.median", "length.p99", "length.longest")
    return {name: Measure(value) for name, value in zip(names, found, strict=True) if value is not None}


def _missing(connection: duckdb.DuckDBPyConnection, config: DataConfig) -> Measures:
    """The share of rows of all splits that have no value in a metadata column."""
    columns = [f"n{i}" for i in range(len(config.numeric))] + [f"c{i}" for i in range(len(config.categorical))]
    nulls = [f"count(*) FILTER (WHERE {column} IS NULL)" for column in columns]
    num_rows, *found = only_row(connection, f"SELECT {', '.join(['count(*)', *nulls])} FROM samples")
    names = [*config.numeric, *config.categorical]
    return {f"missing_share.{name}": _share(num_rows, count) for name, count in zip(names, found, strict=True)}


def _share(num_rows: int, count: int) -> Measure:
    return Measure(count / num_rows, f"{count:,} of {num_rows:,} rows ({count / num_rows:.1%})")
