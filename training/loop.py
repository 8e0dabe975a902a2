"""The training loop.

Invariant: everything that happens at a step boundary happens in one order (validate, agree, save, leave), on all ranks
alike, and is decided by the step and by what the ranks have agreed on.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from training.agreement import Agreement
from training.batches import Leaf
from training.checkpointing import Checkpointer, RunProgress
from training.optimization import learning_rate
from training.progress import Progress
from training.specification import SegmentSpec
from training.stopping import StopReason
from training.trainer import Trainer
from training.validation import Validator
from training.world import World

# Fewer values that count as zero are not worth a word.
NOTED_SHARE = 0.01


@dataclass
class Segment:
    """What one rank works with."""

    spec: SegmentSpec
    world: World
    state: RunProgress
    trainer: Trainer
    validator: Validator
    checkpointer: Checkpointer
    agreement: Agreement
    progress: Progress
    headline: str
    last_save: float = field(default_factory=time.monotonic)
    has_noted_rounding: bool = False


def train(segment: Segment, batches: Iterator[list[Leaf]]) -> StopReason:
    """Train until the run is complete (`NONE`) or all ranks agree on a reason to stop; the state is saved then."""
    state, config = segment.state, segment.spec.train
    while True:
        if _validation_is_due(segment):
            _validate(segment)
        is_complete = state.step == config.steps and state.validated_step == state.step
        decision = segment.agreement.decide(save_is_due=_save_is_due(segment))
        if decision.save or decision.stop or is_complete:
            _save(segment)
        if decision.stop or is_complete:
            return StopReason.NONE if is_complete else decision.stop
        figures = segment.trainer.take_step(state.step, next(batches))
        state.curve.record(state.step + 1, figures, learning_rate(config, state.step))
        state.step += 1
        segment.progress.stepped(state.step, state.curve.last)


def _validation_is_due(segment: Segment) -> bool:
    step = segment.state.step
    on_cadence = step > 0 and step % segment.spec.validation.every_steps == 0
    return (on_cadence or step == segment.spec.train.steps) and segment.state.validated_step != step


def _validate(segment: Segment) -> None:
    with segment.progress.phase("validate"):
        metrics = segment.validator.validate(segment.trainer.model, segment.agreement)
    # None: asked to stop meanwhile. The validation is still due and is made when the run goes on.
    if metrics is not None:
        segment.state.record_validation(metrics, segment.headline)


def _save_is_due(segment: Segment) -> bool:
    cadence = segment.spec.checkpoint
    return (
        segment.state.step % cadence.every_steps == 0 or time.monotonic() - segment.last_save >= cadence.every_seconds
    )


def _note_rounding(segment: Segment) -> None:
    """Say it once if many of the gradient's values were too small for the exact sum: they count as zero."""
    state = segment.state
    num_values = state.step * segment.spec.train.leaves * segment.trainer.num_parameters
    if state.curve.num_rounded_away > NOTED_SHARE * num_values and not segment.has_noted_rounding:
        segment.has_noted_rounding = True
        share = state.curve.num_rounded_away / num_values
        segment.progress.noted(f"{share:.1%} of the gradient's values were below the resolution of the exact sum.")


def _save(segment: Segment) -> None:
    segment.last_save = time.monotonic()
    if segment.checkpointer.is_saved():
        return
    with segment.progress.phase("save"):
        segment.state.curve.collect(segment.state.step)
        _note_rounding(segment)
        consumed = segment.trainer.consumption.collect()
        if consumed is not None:
            segment.progress.checkpointed(segment.checkpointer.save(consumed).path)
    segment.checkpointer.mark_saved()
