"""The tables of a calibration, and their meaning in sentences.

Invariant: pure; the same on a page and in a terminal.
"""

from collections.abc import Mapping
from typing import Any

from tasks.console.tables import Cell, Kind, Table
from tasks.text import NOTHING, count_of, plain, score

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
    """Scores at each tenth, and at the best threshold; no rows unless the target is binary."""
    columns: list[tuple[str, Kind]] = [
        ("Threshold", "number"), ("Precision", "bar"), ("Recall", "bar"), ("F1", "bar"), ("Positive", "number"),
        ("", "text"),
    ]  # fmt: skip
    thresholds = calibration.get("thresholds") if calibration is not None else None
    if thresholds is None:
        return Table(columns, [])
    listed = [(one, "") for one in thresholds["listed"][LISTED_EVERY - 1 :: LISTED_EVERY]]
    best = thresholds["best"]
    named = [*listed, (best, "best F1 on validation"), (best["measured"], "the same on test")]
    return Table(columns, [_list_scores(one, note) for one, note in named])


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
    best, positive = calibration["thresholds"]["best"], plain(calibration["classes"][1])
    return [
        f"Threshold with the best F1 on validation: {best['threshold']:.4f}. A sample whose calibrated probability of "
        f"“{positive}” is at least that counts as “{positive}”."
    ]
