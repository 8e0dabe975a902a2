"""The quality gate: whether what the last validation showed is good enough for a checkpoint to be promoted.

Pure. The figures are those that the checkpoint itself carries, so the same checkpoint is always judged alike, by
whichever process and however often; only another gate makes another judgement.
"""

import math
from collections.abc import Mapping
from typing import Any

from storage.runs.metric_values import METRIC_WORDS
from storage.runs.run_state import RejectedRecord, ValidationFigures
from tasks.text import score
from training.configuration import GateConfig, TrainConfig


def read_figures(state: Mapping[str, Any]) -> ValidationFigures | None:
    """What the last validation in a checkpoint's `state.json` showed, or None if none was made yet."""
    validations, best = state["history"]["validation"], state["best"]
    if not validations or best is None:
        return None
    return ValidationFigures(
        metric=best["metric"],
        value=validations[-1]["metrics"].get(best["metric"]),
        step=validations[-1]["step"],
        best_value=best["value"],
        best_step=best["step"],
        num_without_better=state["validations_without_better"],
    )


def is_last(figures: ValidationFigures, step: int, train: TrainConfig) -> bool:
    """Whether training ends with the checkpoint of `step`: with the last step, or because patience was lost there."""
    is_early = train.patience is not None and figures.step == step and figures.num_without_better >= train.patience
    return step == train.steps or is_early


def find_rejection(figures: ValidationFigures | None, step: int, train: TrainConfig, gate: GateConfig) -> str | None:
    """Why a checkpoint of `step` does not pass, in words, or None. What was never validated passes.

    A value that is not finite, or not defined, passes no limit; a gate that sets none lets it pass.
    """
    if figures is None:
        return None
    name = METRIC_WORDS.get(figures.metric, figures.metric)
    found = f"{name} {score(figures.value)} at step {figures.step:,}"
    lowest, largest_drop = _lowest_at(figures, step, train, gate), gate.largest_drop
    if figures.value is None or isinstance(figures.value, str):
        limits = [("lowest_metric", lowest), ("largest_drop", largest_drop)]
        named = [f"checkpoint.gate.{name} = {limit:g}" for name, limit in limits if limit is not None]
        problem = f"{found} is not a finite number"
        if figures.value is None:
            problem = f"{name} is not defined at step {figures.step:,}, as all samples are of one class,"
        return f"{problem} and does not pass {' or '.join(named)}" if named else None
    if lowest is not None and figures.value < lowest:
        return f"{found} is below checkpoint.gate.lowest_metric = {lowest:g}"
    if largest_drop is not None and _has_dropped(figures.value, figures.best_value, largest_drop):
        best = f"{score(figures.best_value)} at step {figures.best_step:,}"
        return f"{found} is further below the best, {best}, than checkpoint.gate.largest_drop = {largest_drop:g}"
    return None


def describe_end(run: str, record: RejectedRecord, rejection: str) -> str:
    """Message for a person when the last checkpoint of a run does not pass."""
    return (
        f"Training of run {run!r} ended at step {record.checkpoint.step:,}, but its model did not pass the quality "
        f"gate: {rejection}. The checkpoint is kept, {record.checkpoint.path}. To accept it, change checkpoint.gate "
        "and run again: it is promoted without being trained again. To go on training, give more train.steps, or after "
        "an early end more train.patience; training again with the same configuration would give the same model."
    )


def _lowest_at(figures: ValidationFigures, step: int, train: TrainConfig, gate: GateConfig) -> float | None:
    """The lowest metric that passes at `step`; None if the gate sets no limit there."""
    from_step = gate.lowest_from_step
    is_asked = is_last(figures, step, train) if from_step is None else step >= from_step
    return gate.lowest_metric if is_asked else None


def _has_dropped(value: float, best: float | None, largest_drop: float) -> bool:
    drop = 0.0 if best is None else best - value
    return drop > largest_drop and not math.isclose(drop, largest_drop)
