"""The quality gate: whether what the last validation showed is good enough for a checkpoint to be promoted.

Pure. The figures are those that the checkpoint itself carries, so the same checkpoint is always judged alike, by
whichever process and however often; only another gate makes another judgement.
"""

import math
from collections.abc import Mapping
from typing import Any

from storage.runs.run_state import RefusedRecord, ValidationFigures
from tasks.pages.words import METRIC_WORDS
from training.configuration import GateConfig


def read_figures(state: Mapping[str, Any]) -> ValidationFigures | None:
    """What the last validation in a checkpoint's `state.json` showed, or None if none was made yet."""
    validations, best = state["history"]["validation"], state["best"]
    if not validations or best is None:
        return None
    return ValidationFigures(
        metric=best["metric"],
        value=validations[-1]["metrics"][best["metric"]],
        step=validations[-1]["step"],
        best_value=best["value"],
        best_step=best["step"],
    )


def find_refusal(figures: ValidationFigures | None, step: int, steps_total: int, gate: GateConfig) -> str | None:
    """Why a checkpoint of `step` does not pass, in words, or None. What was never validated passes."""
    if figures is None:
        return None
    found = f"{METRIC_WORDS.get(figures.metric, figures.metric)} {figures.value:.4f} at step {figures.step:,}"
    if _is_too_low(figures, step, steps_total, gate):
        return f"{found} is below checkpoint.gate.lowest_metric = {gate.lowest_metric:g}"
    if _has_dropped(figures, gate):
        best = f"{figures.best_value:.4f} at step {figures.best_step:,}"
        return f"{found} is further below the best, {best}, than checkpoint.gate.largest_drop = {gate.largest_drop:g}"
    return None


def describe_end(run: str, record: RefusedRecord, refusal: str) -> str:
    """What a person is told when the last checkpoint of a run does not pass."""
    return (
        f"Run {run!r} reached its last step, {record.checkpoint.step:,}, but its model did not pass the quality gate: "
        f"{refusal}. The checkpoint is kept, {record.checkpoint.path}. To accept it, change checkpoint.gate and run "
        "again: it is promoted without being trained again. To go on training, give more train.steps; training again "
        "with the same configuration would give the same model."
    )


def _is_too_low(figures: ValidationFigures, step: int, steps_total: int, gate: GateConfig) -> bool:
    from_step = steps_total if gate.lowest_from_step is None else gate.lowest_from_step
    if gate.lowest_metric is None or step < from_step:
        return False
    return not figures.value >= gate.lowest_metric  # so that what is no number does not pass


def _has_dropped(figures: ValidationFigures, gate: GateConfig) -> bool:
    if gate.largest_drop is None:
        return False
    drop = figures.best_value - figures.value
    return not (drop <= gate.largest_drop or math.isclose(drop, gate.largest_drop))
