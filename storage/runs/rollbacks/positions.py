"""Which positions of the run's order each step takes, when rollbacks left some of them out. Pure arithmetic.

A step takes `batch_size` samples, from its first position on. Without rollbacks that is step * batch_size. A rollback
goes back to the beginning of its `resume_step`, which from then on takes the samples behind all that were taken until
the diverged step. It rewrites the steps from there on, and so supersedes every earlier rollback to the same or a later
step: what that one had left out lies within what this one leaves out.

Invariant: over the steps, the positions that are taken and those that the standing rollbacks leave out follow each
other without a gap and without an overlap.
"""

from collections.abc import Sequence
from itertools import pairwise

from storage.runs.run_state import RollbackRecord


def standing(rollbacks: Sequence[RollbackRecord]) -> list[RollbackRecord]:
    """The rollbacks that no later one superseded, oldest first: each goes back to a later step than the one before."""
    kept: list[RollbackRecord] = []
    for record in rollbacks:
        kept = [*(earlier for earlier in kept if earlier.resume_step < record.resume_step), record]
    return kept


def find_governing(step: int, rollbacks: Sequence[RollbackRecord]) -> RollbackRecord | None:
    """The rollback that decides which samples and learning rate the step (counted from 0) has; None if none does."""
    return next((record for record in reversed(standing(rollbacks)) if record.resume_step <= step), None)


def first_position(step: int, batch_size: int, rollbacks: Sequence[RollbackRecord]) -> int:
    """Where in the order the samples of a step (counted from 0) begin."""
    record = find_governing(step, rollbacks)
    if record is None:
        return step * batch_size
    return record.end_position + (step - record.resume_step) * batch_size


def end_position(num_steps: int, batch_size: int, rollbacks: Sequence[RollbackRecord]) -> int:
    """Where in the order the samples of the first `num_steps` steps end: what the run has left behind by then.

    A rollback to just this point is not in it: it decides what comes next.
    """
    return first_position(num_steps - 1, batch_size, rollbacks) + batch_size if num_steps > 0 else 0


def learning_rate_factor(step: int, rollbacks: Sequence[RollbackRecord]) -> float:
    """What the schedule's learning rate is multiplied with at a step (counted from 0)."""
    record = find_governing(step, rollbacks)
    return record.learning_rate_factor if record is not None else 1.0


def skipped_ranges(first_step: int, end_step: int, rollbacks: Sequence[RollbackRecord]) -> list[tuple[int, int]]:
    """The positions [begin, end) that were left out on the way to one of the steps [first_step, end_step)."""
    return [
        (record.first_position, record.end_position)
        for record in standing(rollbacks)
        if first_step <= record.resume_step < end_step
    ]


def same_stride(steps: range, rollbacks: Sequence[RollbackRecord]) -> list[range]:
    """The steps cut into ranges within which positions follow each other without a gap."""
    cuts = [record.resume_step for record in standing(rollbacks) if steps.start < record.resume_step < steps.stop]
    bounds = [steps.start, *cuts, steps.stop]
    return [range(start, end) for start, end in pairwise(bounds) if start < end]
