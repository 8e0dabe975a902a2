"""Checkpoints that were quarantined, passed over or given up, in words: which, why, what it means for the run.

Invariant: follows from the manifest alone.
"""

from storage.runs.rollbacks.quarantine import has_lost_all
from storage.runs.run_records import QuarantineRecord
from storage.runs.run_state import RunState
from tasks.text import count_of, moment


def describe_quarantined(state: RunState) -> list[str]:
    """Each of them, oldest first."""
    return [
        f"The checkpoint of step {record.step:,} {what_became_of(record)} on {moment(record.quarantined_at)}: "
        f"{record.reason.rstrip('.')}."
        for record in state.quarantined
    ]


def what_became_of(record: QuarantineRecord) -> str:
    """In words that go on a sentence about the checkpoint."""
    if record.is_given_up:
        return "was given up, as the run began anew"
    return (
        "was found damaged and quarantined" if record.verdict == "damaged" else "could not be read and was passed over"
    )


def describe_setback(state: RunState) -> str | None:
    """What a run that starts now loses by them, or None if its resume point is later than all of them."""
    resume_step = state.promoted.step if state.promoted else 0
    quarantined_step = max((record.step for record in state.quarantined if not record.is_given_up), default=0)
    if quarantined_step <= resume_step:
        return None
    repeated = count_of(quarantined_step - resume_step, "step")
    if has_lost_all(state):
        return (
            "No other checkpoint is kept: the run does not begin anew by itself. `holdfast run` looks at these again."
        )
    if state.promoted is None:
        return f"No other checkpoint is kept: the run starts again from step 0 and trains {repeated} again."
    return f"The run goes on from the checkpoint of step {resume_step:,} and trains {repeated} again."
