"""Drift: how far a data set is from the one on which the weights were trained that a run begins with.

Invariant: pure. It is found from what both data sets keep, so no row of either is read for it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from storage.datasets import CategoricalColumn, DatasetManifest, NumericColumn
from tasks.configuration.run import DataConfig
from tasks.data.expectations.measures import Measure, Measures
from tasks.data.expectations.user_suite import DRIFT, Expectation
from tasks.data.labels import name_of
from tasks.data.split import Assignment

NUM_SHOWN = 3


@dataclass(frozen=True)
class Described:
    """A data set between whose like there may be drift; `labels` has the rows of each class in all splits."""

    is_text: bool
    num_rows: int
    labels: Mapping[str, int]
    numeric: Sequence[NumericColumn]
    categorical: Sequence[CategoricalColumn]
    measures: Mapping[str, float]


def describe_dataset(dataset: DatasetManifest, measures: Mapping[str, float]) -> Described:
    """A published data set; `measures` are those that its contract's result keeps."""
    counts = [split.class_counts or [0] * len(dataset.target.classes) for split in dataset.splits.values()]
    labels = {name: sum(found) for name, *found in zip(dataset.target.classes, *counts, strict=True)}
    num_rows = sum(split.num_rows for split in dataset.splits.values())
    return Described(dataset.tokenizer is not None, num_rows, labels, dataset.numeric, dataset.categorical, measures)


def describe_data(
    dealt: Assignment,
    numeric: Sequence[NumericColumn],
    categorical: Sequence[CategoricalColumn],
    measures: Measures,
    config: DataConfig,
) -> Described:
    """A data set that is being prepared."""
    counts = zip(dealt.classes, *dealt.class_counts, strict=True)
    labels = {name_of(name, config): sum(found) for name, *found in counts}
    values = {name: measure.value for name, measure in measures.items()}
    return Described(config.text is not None, sum(dealt.num_rows), labels, numeric, categorical, values)


def measure_drift(before: Described, now: Described) -> Measures:
    """The measures of drift, of what both data sets have."""
    found = _of_rows(before, now) | _of_labels(before, now) | _of_length(before, now)
    return found | _of_missing(before, now) | _of_numeric(before, now) | _of_categories(before, now)


def drift_suite(measures: Iterable[str]) -> list[Expectation]:
    """What is expected of these measures of drift: all are warnings."""
    bounds = {
        "rows": ({"min_value": 0.5}, "rows for each row there"),
        "labels": ({"max_value": 0.2}, "change of the share of the classes"),
        "length": ({"max_value": 0.5}, "relative change of the median length"),
        "missing_share": ({"max_value": 0.1}, "change of the share of missing values"),
        "mean": ({"max_value": 0.5}, "change of the mean, in standard deviations there"),
        "new_categories": ({"max_value": 0.1}, "share of the values that are not known there"),
    }
    suite = []
    for name in measures:
        what, _, column = name.removeprefix(DRIFT).partition(".")
        bound, words = bounds[what]
        words += f", column {column!r}" if column else ""
        suite.append(
            {
                "type": "expect_column_values_to_be_between",
                "kwargs": {"column": name, **bound},
                "severity": "warning",
                "description": f"drift from the data of train.start_from: {words}",
                "notes": "The first weights were trained on other data than these: see whether that is meant.",
            }
        )
    return suite


def _of_rows(before: Described, now: Described) -> Measures:
    rows, others = now.num_rows, before.num_rows
    return {f"{DRIFT}rows": Measure(rows / others, f"{rows:,} rows, there {others:,}")} if others else {}


def _of_labels(before: Described, now: Described) -> Measures:
    """Half of the sum of all changes: the share of rows that would have to be of another class."""
    old, new = _shares(before.labels), _shares(now.labels)
    if not old:
        return {}
    changes = {name: new.get(name, 0.0) - old.get(name, 0.0) for name in (*old, *(new.keys() - old.keys()))}
    largest = sorted(changes, key=lambda name: (-abs(changes[name]), name))[:NUM_SHOWN]
    words = ", ".join(f"{name!r} {new.get(name, 0.0):.1%}, there {old.get(name, 0.0):.1%}" for name in largest)
    return {f"{DRIFT}labels": Measure(sum(map(abs, changes.values())) / 2, words)}


def _shares(labels: Mapping[str, int]) -> dict[str, float]:
    total = sum(labels.values())
    return {name: count / total for name, count in labels.items()} if total else {}


def _of_length(before: Described, now: Described) -> Measures:
    old, new = before.measures.get("length.median"), now.measures.get("length.median")
    if not old or not new or before.is_text != now.is_text:
        return {}
    return {f"{DRIFT}length": Measure(abs(new / old - 1), f"{new:,.0f}, there {old:,.0f}")}


def _of_missing(before: Described, now: Described) -> Measures:
    return {
        f"{DRIFT}{name}": Measure(abs(share - before.measures[name]), f"{share:.1%}, there {before.measures[name]:.1%}")
        for name, share in now.measures.items()
        if name.startswith("missing_share.") and name in before.measures
    }


def _of_numeric(before: Described, now: Described) -> Measures:
    known = {column.name: column for column in before.numeric}
    return {
        f"{DRIFT}mean.{column.name}": Measure(
            abs(column.mean - known[column.name].mean) / known[column.name].standard_deviation,
            f"{column.mean:,.4g}, there {known[column.name].mean:,.4g}",
        )
        for column in now.numeric
        if column.name in known
    }


def _of_categories(before: Described, now: Described) -> Measures:
    known = {column.name: set(column.vocabulary) for column in before.categorical}
    found = {}
    for column in now.categorical:
        if column.name in known and column.vocabulary:
            new = [value for value in column.vocabulary if value not in known[column.name]]
            shown = f": {', '.join(map(repr, new[:NUM_SHOWN]))}" if new else ""
            words = f"{len(new):,} of {len(column.vocabulary):,} values{shown}"
            found[f"{DRIFT}new_categories.{column.name}"] = Measure(len(new) / len(column.vocabulary), words)
    return found
