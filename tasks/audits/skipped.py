"""Samples that rollbacks in the manifest left out, and whether each had a reason to.

Invariant: a range counts as skipped only if a segment diverged at its end or a person asked for it, and only as far as
the arithmetic of rollbacks makes it; whether its samples were really left out is seen from the ledger, step by step.
"""

from collections.abc import Sequence
from typing import Any

from storage.runs.rollbacks.positions import end_position, standing
from storage.runs.rollbacks.rolling_back import end_of_left_out
from storage.runs.run_state import RollbackRecord, RunState, SegmentRecord
from tasks.audits.violations import Violation


def describe_skipped(state: RunState) -> list[dict[str, Any]]:
    """The ranges of the order that the promoted steps left out, in their order, JSON-able. Positions count samples."""
    promoted_step = state.promoted.step if state.promoted else 0
    return [
        {
            "fence": record.fence,
            "first_position": record.first_position,
            "end_position": record.end_position,
            "samples": record.num_skipped,
            "before_step": record.resume_step,
            "diverged_step": record.diverged_step,
            "cause": record.cause,
        }
        for record in standing(state.rollbacks)
        if record.resume_step < promoted_step
    ]


def find_unfounded(state: RunState, batch_size: int) -> list[Violation]:
    """Rollbacks that neither a divergence nor a request explains, or that leave out something else than it took."""
    return [
        Violation("rollback", (record.resume_step,), problem)
        for number, record in enumerate(state.rollbacks)
        for problem in _problems(record, state, number, batch_size)
    ]


def _problems(record: RollbackRecord, state: RunState, number: int, batch_size: int) -> list[str]:
    name = f"The rollback to step {record.resume_step:,}, for segment {record.fence},"
    segment = next((segment for segment in state.segments if segment.fence == record.fence), None)
    if record.asked_by is not None:
        problems = _problems_of_request(record, segment, name)
    elif segment is None or segment.divergence is None:
        return [f"{name} has no reason: the manifest knows no divergence of that segment."]
    elif segment.divergence.step != record.diverged_step:
        problems = [f"{name} names step {record.diverged_step:,}; what diverged is step {segment.divergence.step:,}."]
    else:
        problems = []
    due = _due(record, state.rollbacks[:number], batch_size)
    if due != (record.first_position, record.end_position):
        what = "led to the divergence" if record.asked_by is None else "was taken since that step"
        problems.append(
            f"{name} leaves out positions {record.first_position:,} to {record.end_position - 1:,}; what {what} is "
            f"{due[0]:,} to {due[1] - 1:,}."
        )
    return problems


def _problems_of_request(record: RollbackRecord, segment: SegmentRecord | None, name: str) -> list[str]:
    if segment is None:
        return [f"{name} names a segment that the manifest does not have."]
    if not record.resume_step <= record.diverged_step <= segment.last_step:
        return [f"{name} leaves step {record.diverged_step:,} behind; that segment came to {segment.last_step:,}."]
    return []


def _due(record: RollbackRecord, earlier: Sequence[RollbackRecord], batch_size: int) -> tuple[int, int]:
    """First position and end of what the rollback may leave out, after those before it."""
    first = end_position(record.resume_step, batch_size, earlier)
    # As versions of before made it, who let in again what such a rollback's predecessors had left out.
    of_before = end_position(record.diverged_step, batch_size, earlier)
    if record.asked_by is None and record.end_position == of_before:
        return first, of_before
    return first, end_of_left_out(record.resume_step, record.diverged_step, batch_size, earlier)
