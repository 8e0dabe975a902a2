"""Metrics per slice, the samples that have one value of a metadata column: as a table, and in a sentence.

Invariant: pure functions of an evaluation, for a page and for a terminal alike; one without slices has neither.
"""

from collections.abc import Mapping
from typing import Any

from tasks.console.tables import Cell, Kind, Table
from tasks.text import NOTHING, count_of, metric_name, plain, score, shortened
from training.validation_configuration import SLICE_MAX_VALUES, SLICE_MIN_SAMPLES

MAX_NAME_CHARACTERS = 60
WITHOUT_VALUE = {"missing": "(missing)", "unseen": "(rare, or not in the training split)"}
EXPLANATION = (
    f"Values with fewer than {SLICE_MIN_SAMPLES} samples, and all but the {SLICE_MAX_VALUES} most frequent ones, are "
    "taken together. Macro-F1 of a slice is the mean over the classes that occur or are predicted in it. A dash is a "
    "metric that is not defined."
)


def slices_tables(evaluation: Mapping[str, Any] | None) -> list[Table]:
    """One for each column, all samples in the first row and the largest slice in the second; none before there is any.

    The metrics from the most telling on, as the evaluation has them from the least telling on.
    """
    return [] if evaluation is None else [_table(evaluation, found) for found in evaluation.get("slices", [])]


def _table(evaluation: Mapping[str, Any], found: Mapping[str, Any]) -> Table:
    names = list(reversed(evaluation["metrics"]))
    columns: list[tuple[str, Kind]] = [(plain(found["column"]), "text"), ("Samples", "number")]
    columns += [(metric_name(name), "number") for name in names]
    entries = [("(all)", evaluation), *((name_slice(entry), entry) for entry in found["slices"])]
    rows = [
        [
            Cell(name),
            Cell(f"{entry['num_samples']:,}"),
            *(Cell(score(entry["metrics"].get(metric))) for metric in names),
        ]
        for name, entry in entries
    ]
    return Table(columns, rows)


def name_slice(entry: Mapping[str, Any]) -> str:
    """'DE', '(missing)', '(rare, or not in the training split)', '(7 rare values)'."""
    if entry["group"] == "value":
        return shortened(entry["value"], MAX_NAME_CHARACTERS) or "(empty)"
    return WITHOUT_VALUE.get(entry["group"], f"({count_of(entry['num_values'], 'rare value')})")


def describe_slices(found: Mapping[str, Any], metric: str) -> str:
    """'macro-F1 by country: 0.7123 (DE, 812 samples) to 0.9012 (FR, 140 samples)': of one column, the worst first."""
    values = [(float(entry["metrics"].get(metric, "nan")), entry) for entry in found["slices"]]
    defined = [(value, entry) for value, entry in values if value == value]
    begin = f"{metric_name(metric)} by {plain(found['column'])}: "
    if not defined:
        return f"{begin}{NOTHING}"
    ends = [choose(defined, key=lambda pair: pair[0]) for choose in (min, max)]
    shown = [f"{score(v)} ({name_slice(e)}, {count_of(e['num_samples'], 'sample')})" for v, e in ends]
    return begin + " to ".join(shown[: len(defined)])
