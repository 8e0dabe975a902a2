"""The tables of a calibration, and their meaning in sentences.

Invariant: pure; the same on a page and in a terminal.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.console.tables import Cell, Kind, Table
from tasks.reporting.tables import MAX_NAME_CHARACTERS
from tasks.text import NOTHING, count_of, plain, score, told_apart

# Of the thresholds that are kept every so many are listed; the chart has all.
LISTED_EVERY = 10


def describe_calibration(calibration: Mapping[str, Any] | None) -> list[str]:
    """What it is and what follows; why there is none, if so. Nothing of one that was never made."""
    if calibration is None:
        return []
    if calibration["temperature"] is None:
        return [f"Not calibrated: {plain(calibration['reason'])}."]
    return [_describe_temperature(calibration), _describe_errors(calibration), *_describe_best(calibration)]


def thresholds_table(calibration: Mapping[str, Any] | None) -> Table:
    """Scores at each tenth and at the best threshold, or at the best of each class; no rows where none decides."""
    thresholds = calibration.get("thresholds") if calibration is not None else None
    if thresholds is not None and "per_class" in thresholds:
        return _table_of_classes(thresholds["per_class"])
    columns: list[tuple[str, Kind]] = [
        ("Threshold", "number"), ("Precision", "bar"), ("Recall", "bar"), ("F1", "bar"), ("Positive", "number"),
        ("", "text"),
    ]  # fmt: skip
    if thresholds is None:
        return Table(columns, [])
    listed = [(one, "") for one in thresholds["listed"][LISTED_EVERY - 1 :: LISTED_EVERY]]
    best = thresholds["best"]
    named = [*listed, (best, "best F1 on validation"), (best["measured"], "the same on test")]
    return Table(columns, [_list_scores(one, note) for one, note in named])


def _table_of_classes(entries: Sequence[Mapping[str, Any]]) -> Table:
    """The best threshold of each class, with its scores on the validation split, and its F1 on the test split."""
    columns: list[tuple[str, Kind]] = [
        ("Class", "text"), ("Threshold", "number"), ("Precision", "bar"), ("Recall", "bar"), ("F1", "bar"),
        ("Positive", "number"), ("F1 on test", "bar"),
    ]  # fmt: skip
    rows = []
    names = told_apart((entry["class"] for entry in entries), MAX_NAME_CHARACTERS)
    for shown, entry in zip(names, entries, strict=True):
        name, best = Cell(shown), entry["best"]
        if best is None:
            rows.append([name, *(Cell(NOTHING) for _ in columns[1:])])
            continue
        *scores, _note = _list_scores(best, "")
        measured = best["measured"]["f1"]
        rows.append([name, *scores, Cell(NOTHING) if measured is None else Cell(f"{measured:.3f}", measured)])
    return Table(columns, rows)


def _list_scores(one: Mapping[str, Any], note: str) -> list[Cell]:
    shares = [one[name] for name in ("precision", "recall", "f1")]
    return [
        Cell(f"{one['threshold']:.3f}"),
        *(Cell(NOTHING) if value is None else Cell(f"{value:.3f}", value) for value in shares),
        Cell(f"{one['num_positive']:,}"),
        Cell(note),
    ]


def _describe_temperature(calibration: Mapping[str, Any]) -> str:
    fitted, loss = calibration["fitted_on"], calibration["loss"]
    text = f"Temperature {calibration['temperature']:.4f}, fitted on {count_of(fitted['num_samples'], 'sample')}"
    text += " of the validation split"
    if fitted["num_samples"] < fitted["num_rows"]:
        text += f", the first of {fitted['num_rows']:,}"
    text += f": loss there {score(loss['before'])} before, {score(loss['after'])} after."
    if calibration["is_bounded"]:
        text += " That is the bound: one further out would fit better still, so do not rely on these probabilities."
    return text


def _describe_errors(calibration: Mapping[str, Any]) -> str:
    errors, measured = calibration["calibration_error"], calibration["measured_on"]
    return (
        f"Expected calibration error on {count_of(measured['num_samples'], 'sample')} of the test split: "
        f"{score(errors['before'])} before, {score(errors['after'])} after."
    )


def _describe_best(calibration: Mapping[str, Any]) -> list[str]:
    if calibration["thresholds"] is None:
        return []
    if "per_class" in calibration["thresholds"]:
        return [
            "Thresholds with the best F1 on validation, one for each class: a sample whose calibrated probability of a "
            "class is at least that counts as having it. The scores beside them are those on validation."
        ]
    best, positive = calibration["thresholds"]["best"], plain(calibration["classes"][1])
    return [
        f"Threshold with the best F1 on validation: {best['threshold']:.4f}. A sample whose calibrated probability of "
        f"“{positive}” is at least that counts as “{positive}”."
    ]
