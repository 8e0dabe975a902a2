"""How a segment ended, in words: for the log, the step that Prefect shows, and alerts.

Invariant: one line for each segment, from the process that settles it. One that was lost, failed or hung is an alert as
well.
"""

from storage.runs.run_state import SegmentRecord
from tasks.console.announce import Trouble, announce
from tasks.prefect_bridge.alerts import NO_PROGRESS, SEGMENT_LOST, alert
from tasks.text import at_least

TROUBLE = ("lost", "failed")


def report_segment_end(address: str, run: str, record: SegmentRecord, is_hung: bool) -> None:
    """Of the run at `address`. `is_hung`: its ranks made no step for too long and were killed."""
    words = describe_segment_end(record)
    if record.outcome not in TROUBLE:
        announce(words)
        return
    alert(
        NO_PROGRESS if is_hung else SEGMENT_LOST,
        address,
        words,
        run=run,
        outcome=record.outcome,
        step=record.last_step,
        steps_lost=record.steps_lost,
    )


def describe_segment_end(record: SegmentRecord) -> str:
    """One or two sentences."""
    count = at_least(f"{record.steps_lost:,}", record.steps_lost_is_least)
    lost = f", {count} steps lost" if record.steps_lost else ""
    if record.outcome == "completed":
        if record.patience is None:
            return f"Trained to the last step, {record.last_step:,}."
        of = f" of {record.planned_steps:,}"
        return f"Stopped early at step {record.last_step:,}{of}: {record.cause}."
    if record.outcome == "diverged":
        return f"Segment ended: diverged at step {record.last_step:,}."  # the rollback reports the rest
    cause, resume_step = record.cause.removesuffix("."), record.last_step - record.steps_lost
    if record.is_final:
        because = f": {cause}" if cause else ""
        words = (
            f"Segment ended: {record.outcome} at step {record.last_step:,}{lost}, and it is not tried again{because}."
        )
    else:
        because = f" ({cause})" if cause else ""
        words = f"Segment ended: {record.outcome}{because}. The run goes on from step {resume_step:,}{lost}."
    return Trouble(words) if record.outcome in TROUBLE else words
