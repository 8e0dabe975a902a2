"""Checkpoints that were found damaged and set aside, in words: which, why, and what it means for the run.

Invariant: follows from the manifest alone.
"""

from storage.runs.run_state import RunState
from tasks.pages.words import count_of, moment


def describe_set_aside(state: RunState) -> list[str]:
    """Each of them, oldest first."""
    return [
        f"The checkpoint of step {record.step:,} was found damaged and set aside on {moment(record.set_aside_at)}: "
        f"{record.reason.rstrip('.')}."
        for record in state.set_aside
    ]


def describe_setback(state: RunState) -> str | None:
    """What a run that starts now loses by them, or None if its resume point is later than all of them."""
    resume_step = state.promoted.step if state.promoted else 0
    set_aside_step = max((record.step for record in state.set_aside), default=0)
    if set_aside_step <= resume_step:
        return None
    repeated = count_of(set_aside_step - resume_step, "step")
    if state.promoted is None:
        return f"No other checkpoint is kept: the run starts again from step 0 and trains {repeated} again."
    return f"The run goes on from the checkpoint of step {resume_step:,} and trains {repeated} again."
