"""What the manifest says was left out on purpose, and whether it had a reason to.

Invariant: a range counts as skipped only if a segment diverged at its end, and only as far as the arithmetic of
rollbacks makes it; whether its samples were really left out is seen from the ledger, step by step.
"""

from typing import Any

from storage.runs.positions import end_position, standing
from storage.runs.run_state import RollbackRecord, RunState
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
    """Rollbacks that no divergence explains, or that leave out something else than it took."""
    return [
        Violation("rollback", (record.resume_step,), problem)
        for number, record in enumerate(state.rollbacks)
        for problem in _problems(record, state, number, batch_size)
    ]


def _problems(record: RollbackRecord, state: RunState, number: int, batch_size: int) -> list[str]:
    name = f"The rollback to step {record.resume_step:,}, for segment {record.fence},"
    diverged = [segment.divergence for segment in state.segments if segment.fence == record.fence]
    if not diverged or diverged[0] is None:
        return [f"{name} has no reason: the manifest knows no divergence of that segment."]
    problems = []
    if diverged[0].step != record.diverged_step:
        problems.append(f"{name} names step {record.diverged_step:,}; what diverged is step {diverged[0].step:,}.")
    earlier = state.rollbacks[:number]
    due = tuple(end_position(step, batch_size, earlier) for step in (record.resume_step, record.diverged_step))
    if due != (record.first_position, record.end_position):
        problems.append(
            f"{name} leaves out positions {record.first_position:,} to {record.end_position - 1:,}; what led to the "
            f"divergence is {due[0]:,} to {due[1] - 1:,}."
        )
    return problems
