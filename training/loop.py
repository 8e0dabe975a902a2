"""The training loop.

Invariant: everything that happens at a step boundary happens in one order (validate, agree, go on with the save under
way, save, leave), on all ranks alike, and is decided by the step and by what the ranks have agreed on. A validation
only goes on with the save under way, or is broken off. What a rank does not live to do with the others is done again.
"""

import time
from collections.abc import Mapping

from storage.runs.metric_values import NotFinite, describe_not_finite
from training.configuration import LONGEST_EVERY_SECONDS
from training.going_on import go_on_without, go_over
from training.optim.optimization import learning_rate
from training.parts import Segment
from training.stopping import StopReason

# A save that takes longer hangs, most likely: on a network file system, for instance, a write may never return.
LONG_SAVE_SECONDS = LONGEST_EVERY_SECONDS
# Of ranks that were asked to stop, for the save of the best model that is under way: they may soon be killed.
LONGEST_STAY_SECONDS = 10.0
POLL_SECONDS = 0.01
# Fewer values that count as zero are not worth a word.
NOTED_SHARE = 0.01


def train(segment: Segment) -> StopReason:
    """Train until the run is complete (`NONE`) or all ranks agree on a reason to stop; the state is saved then.

    When a rank dies the others go on without it, from the same step, where they can.
    """
    while True:
        try:
            return _train_in_view(segment)
        except RuntimeError as error:
            go_on_without(segment, error)


def _train_in_view(segment: Segment) -> StopReason:
    """Train with the ranks that there are. Raises `RuntimeError` when one of them is gone."""
    state, config = segment.state, segment.spec.train
    while segment.world.is_member:
        if _validation_is_due(segment):
            _validate(segment)
        is_complete = _is_at_end(segment)
        decision = segment.agreement.decide(_save_is_due(segment), segment.checkpointer.writing)
        if decision.stop or is_complete:
            _save_and_leave(segment, is_stopped=bool(decision.stop))
            return StopReason.NONE if is_complete else decision.stop
        segment.checkpointer.advance(decision.writing, segment.save_is_owed)
        # Before a save that is due: where saves take longer than what is between them, one would always be under way.
        if decision.view > segment.membership.number and segment.checkpointer.is_idle:
            go_over(segment)
            continue
        if decision.save and not _save_when_possible(segment):
            continue  # all are to stop, and save this very step on their way out
        with segment.reporter.waiting_for_input():
            batch = segment.source.batch(state.step)
        figures = segment.trainer.take_step(state.step, batch.microbatches)
        state.curve.record(state.step + 1, figures, learning_rate(config, state.step, segment.spec.rollbacks))
        state.step += 1
        if segment.trainer.optimization.is_exhausted:
            state.curve.collect(state.step)  # what went wrong before counts first, whenever it is looked at
            raise segment.trainer.optimization.exhausted(state.step)
        segment.reporter.stepped(state.step, state.curve.last, batch.num_tokens, len(batch.microbatches))
    return StopReason.PREEMPTED  # this rank left with its node; the others go on, and say how the segment ends


def _is_at_end(segment: Segment) -> bool:
    """Whether training is complete, by the step and the validations alone: at one step, however it was interrupted."""
    state, config = segment.state, segment.spec.train
    is_last = state.step == config.steps and state.validated_step == state.step
    return is_last or state.is_out_of_patience(config.patience)


def _validation_is_due(segment: Segment) -> bool:
    step, spec = segment.state.step, segment.spec
    return spec.validation.is_due(step, spec.train.num_steps) and segment.state.validated_step != step


def _validate(segment: Segment) -> None:
    with segment.reporter.phase("validate"):
        metrics = segment.validator.validate(segment.trainer.model, lambda: _goes_on(segment))
    # None: asked to stop meanwhile. The validation is still due and is made when the run goes on.
    if metrics is not None:
        not_finite = segment.state.record_validation(metrics, segment.headline)
        segment.reporter.validated(segment.state.validation_figures())
        if not_finite:
            segment.reporter.noted(_describe_not_finite(segment.state.step, not_finite))


def _describe_not_finite(step: int, metrics: Mapping[str, NotFinite]) -> str:
    return (
        f"The validation at step {step:,} gave values that are not finite numbers: {describe_not_finite(metrics)}. "
        "Training goes on; these values are recorded and never count as the best. Common causes: the model overflows "
        "in train.precision = 'fp16', or a metadata column has extreme values in the validation split."
    )


def _goes_on(segment: Segment) -> bool:
    """Within a validation, which may take longer than a save: go on with the one under way, unless all are to stop."""
    segment.reporter.alive()
    decision = segment.agreement.decide(writing=segment.checkpointer.writing)
    if decision.stop:
        return False
    segment.checkpointer.advance(decision.writing, segment.save_is_owed)
    return True


def _save_is_due(segment: Segment) -> bool:
    cadence = segment.spec.checkpoint
    return (
        segment.save_is_owed
        or _best_is_due(segment)
        or segment.state.step % cadence.every_steps == 0
        or time.monotonic() - segment.last_save >= cadence.every_seconds
    )


def _best_is_due(segment: Segment) -> bool:
    """A run may train on past its best model: that one has a checkpoint, by the validations and nothing else."""
    return segment.spec.checkpoint.keep_best > 0 and segment.state.has_new_best and not segment.checkpointer.is_saved()


def _make_way(segment: Segment) -> bool:
    """Wait for the save under way: otherwise the speed of the store would decide which step the next one has.

    Not for ever, and once for each: a store that hangs stops no training. False if all are to stop.
    """
    if segment.checkpointer.is_idle or segment.has_waited_for_save:
        return True
    if _finish_save(segment):
        return False
    segment.has_waited_for_save = not segment.checkpointer.is_idle
    if segment.has_waited_for_save:
        segment.reporter.noted(
            f"The model of step {segment.state.step:,}, the best so far, gets no checkpoint: the save before it is "
            f"still under way after {LONG_SAVE_SECONDS:g} s more. Training goes on."
        )
    return True


def _finish_save(segment: Segment, longest_seconds: float | None = None) -> bool:
    """Go on with the save under way, for as long as a save may take if no limit is given; whether all are to stop.

    They go on for so long where they were to stop before; asked meanwhile, they stop at once.
    """
    checkpointer, waits = segment.checkpointer, True
    ends = time.monotonic() + (LONG_SAVE_SECONDS if longest_seconds is None else longest_seconds)
    with segment.reporter.phase("save"):
        while waits and not checkpointer.is_idle:
            segment.reporter.alive()
            decision = segment.agreement.decide(time.monotonic() < ends, checkpointer.writing)
            if decision.stop and longest_seconds is None:
                return True
            checkpointer.advance(decision.writing, is_next_due=True)
            waits = decision.save
            time.sleep(POLL_SECONDS)  # a thread of this process writes
    return False


def _note_rounding(segment: Segment) -> None:
    """Report once if many of the gradient's values were too small for the exact sum: they count as zero."""
    state = segment.state
    num_values = state.step * segment.spec.train.microbatches * segment.trainer.num_parameters
    if state.curve.num_rounded_away > NOTED_SHARE * num_values and not segment.has_noted_rounding:
        segment.has_noted_rounding = True
        share = state.curve.num_rounded_away / num_values
        segment.reporter.noted(f"{share:.1%} of the gradient's values were below the resolution of the exact sum.")


def _save_when_possible(segment: Segment) -> bool:
    """Begin a save, unless the one before is still under way: that one is never overtaken, this one is owed then.

    False if all are to stop instead.
    """
    if _best_is_due(segment) and not _make_way(segment):
        return False
    segment.save_is_owed = not segment.checkpointer.is_idle
    if segment.save_is_owed:
        _report_long_save(segment)
        return True
    segment.last_save, segment.has_reported_save, segment.has_waited_for_save = time.monotonic(), False, False
    if segment.checkpointer.is_saved():
        return True
    segment.save_is_owed = True  # until it is made, or begun: a rank may die meanwhile
    with segment.reporter.phase("save"):
        if segment.spec.checkpoint.background:
            segment.checkpointer.begin()
        else:
            segment.checkpointer.save_now(is_on_cadence=True)
    segment.save_is_owed = False
    _note_rounding(segment)
    return True


def _report_long_save(segment: Segment) -> None:
    """Report once a save that does not come to an end: no other one begins before, and a kill costs ever more."""
    seconds = time.monotonic() - segment.last_save
    if seconds > LONG_SAVE_SECONDS and not segment.has_reported_save:
        segment.has_reported_save = True
        segment.reporter.save_failed(
            f"A save that began {seconds / 60:,.0f} minutes ago is still under way, and no other one begins before it "
            "ends. The store, or the way to it, may hang: look at it now. Training goes on."
        )


def _save_and_leave(segment: Segment, is_stopped: bool) -> None:
    if segment.checkpointer.is_saved_for_good():
        return
    # The save of the best model comes to its end first: a newer one would replace it.
    if segment.checkpointer.is_saving_best and (is_stopped or _finish_save(segment)):
        _finish_save(segment, LONGEST_STAY_SECONDS)
    with segment.reporter.phase("save"):
        segment.checkpointer.save_now()
    _note_rounding(segment)
