"""The two ways in which a run goes back: pure functions from one generation's state to the next, as `transitions.py`.

Invariant: only while the lease is free, each reason is answered once, and what is left out never comes back: the
range of a rollback has in it all that the rollbacks which it replaces had left out.
"""

import time
from collections.abc import Sequence

from storage.errors import ConfigurationError, ConflictError, RunBusyError
from storage.runs.rollbacks.positions import end_position, learning_rate_factor, standing
from storage.runs.rollbacks.quarantine import moved_back
from storage.runs.run_state import CheckpointRecord, RollbackRecord, RunState
from storage.runs.transitions import Change


def roll_back(fence: int, num_steps: int, factor: float, batch_size: int) -> Change:
    """Answer the divergence of the segment `fence`, the last one: go back `num_steps` and leave out what they took.

    The newest checkpoint that is not later than that becomes the resume point; without one, the beginning of the run.
    From there steps are trained again, to the same values, up to the step where other samples begin: so the model does
    not depend on which checkpoints there are. `factor` multiplies the learning rate that was in force.

    Any process may do so while the lease is free, once: raises `RunBusyError`, or `ConflictError`.
    """

    def change(state: RunState, _generation: int) -> RunState:
        _require_nobody(state)
        segment = state.unanswered_divergence
        if segment is None or segment.divergence is None or segment.fence != fence:
            raise ConflictError(f"Run {state.run!r} was just rolled back by another process.")
        diverged_step = segment.divergence.step
        resume_step = max(0, diverged_step - num_steps)
        record = RollbackRecord(
            fence=fence,
            diverged_step=diverged_step,
            resume_step=resume_step,
            first_position=end_position(resume_step, batch_size, state.rollbacks),
            end_position=end_of_left_out(resume_step, diverged_step, batch_size, state.rollbacks),
            learning_rate_factor=factor * learning_rate_factor(diverged_step - 1, state.rollbacks),
            cause=segment.cause,
            rolled_back_at=time.time(),
        )
        return _rolled_back(state, record)

    return change


def roll_back_by_hand(step: int, asked_by: str, factor: float, batch_size: int) -> Change:
    """Go back to the kept checkpoint of `step` on request, and leave out what was taken since then.

    Up to the resume point, or up to the step that diverged if that was not answered yet: then this is the answer.
    `factor` multiplies the learning rate that was in force. A request that was answered changes nothing.

    Raises `ConfigurationError` where there is nothing to go back to, `RunBusyError` while the lease is held.
    """

    def change(state: RunState, _generation: int) -> RunState:
        if is_answered(state, asked_by):
            return state
        _require_nobody(state)
        last_step = find_last_step(state)
        _require_kept(state, step, last_step)
        record = RollbackRecord(
            fence=_find_last_fence(state),
            diverged_step=last_step,
            resume_step=step,
            first_position=end_position(step, batch_size, state.rollbacks),
            end_position=end_of_left_out(step, last_step, batch_size, state.rollbacks),
            learning_rate_factor=factor * learning_rate_factor(last_step - 1, state.rollbacks),
            cause=f"A person asked for it, by the {asked_by}.",
            rolled_back_at=time.time(),
            asked_by=asked_by,
        )
        return _rolled_back(state, record)

    return change


def is_answered(state: RunState, asked_by: str) -> bool:
    """Whether the run was rolled back for this request."""
    return any(record.asked_by == asked_by for record in state.rollbacks)


def find_last_step(state: RunState) -> int:
    """The last step that a rollback by hand leaves behind now: the resume point's, or the one that diverged."""
    promoted_step = state.promoted.step if state.promoted else 0
    last = state.unanswered_divergence
    return max(promoted_step, last.divergence.step if last is not None and last.divergence is not None else 0)


def end_of_left_out(resume_step: int, last_step: int, batch_size: int, rollbacks: Sequence[RollbackRecord]) -> int:
    """Where in the order ends what a rollback leaves out, after these rollbacks: no sooner than those it replaces."""
    replaced = [record.end_position for record in standing(rollbacks) if record.resume_step >= resume_step]
    return max([end_position(last_step, batch_size, rollbacks), *replaced])


def _find_last_fence(state: RunState) -> int:
    """Of the last segment, also while it is the first one and not settled yet: then it is only planned."""
    if state.segments:
        return state.segments[-1].fence
    assert state.promoted is not None  # there is a checkpoint to go back to
    return state.promoted.fence


def _require_nobody(state: RunState) -> None:
    if state.lease is not None:
        raise RunBusyError(f"Run {state.run!r} was just taken over by another process.")


def _require_kept(state: RunState, step: int, last_step: int) -> None:
    earlier: list[CheckpointRecord] = [record for record in state.kept if record.step < last_step]
    if any(record.step == step for record in earlier):
        return
    steps = ", ".join(f"{record.step:,}" for record in earlier) or "none"
    found = "is where the run stands" if step == last_step else "has no checkpoint that is kept"
    raise ConfigurationError(
        f"Run {state.run!r} cannot go back to step {step:,}: that step {found}. It can go back to the checkpoints that "
        f"are kept of earlier steps: {steps}. Nothing was changed. Give one of these as back_to_step; how many are "
        "kept, `checkpoint.keep` and `checkpoint.keep_every_steps` say."
    )


def _rolled_back(state: RunState, record: RollbackRecord) -> RunState:
    kept = [checkpoint for checkpoint in state.kept if checkpoint.step <= record.resume_step]
    # What was rejected may be of the steps that are left out now.
    return moved_back(state, kept).model_copy(update={"rollbacks": [*state.rollbacks, record], "rejected": []})
