"""Words about changes that weaken the promise of one model: in the status, in the report and by the drill.

Invariant: pure. A change of the plan makes another model, one of ranks, libraries or device perhaps other last bits;
no more and no less.
"""

from collections.abc import Sequence

from storage.runs.code_version import NAME, tell_apart
from storage.runs.run_records import ChangeRecord
from storage.runs.run_state import RunState

MAX_CHANGES_LISTED = 5
_CONSEQUENCES = {
    "train.steps": "The learning rate follows the number of steps, so the model is not the one that a run with this "
    "number from its start would give.",
    "train.ranks": "With train.sum = 'fast' the number of ranks decides how sums are rounded, so the last bits of the "
    "weights are not those of an uninterrupted run.",
    NAME: "Another code may compute in another way, so the last bits of the weights may not be those of an "
    "uninterrupted run.",
}
_OF_VERSIONS = "The last bits of the weights may not be those of an uninterrupted run."


def describe_change(record: ChangeRecord) -> str:
    """What was changed, and what follows."""
    changed = f"{record.what} was {record.before} up to step {record.step:,} and {record.now} from there on."
    return f"{changed} {_CONSEQUENCES.get(record.what, _OF_VERSIONS)}"


def describe_other_holdfast(state: RunState) -> str | None:
    """That the segment under way is trained by another Holdfast than the one before it; None if it is not.

    Once a checkpoint of it is promoted, this is a change of the run, with the others.
    """
    lease, before = state.lease, state.segments[-1] if state.segments else None
    if lease is None or lease.work != "train" or before is None:
        return None
    other = tell_apart(before.holdfast, lease.holdfast)
    if other is None:
        return None
    return f"Segment {lease.fence} is trained by {NAME} {other[1]}, segment {before.fence} before it was by {other[0]}."


def list_changes(records: Sequence[ChangeRecord]) -> list[str]:
    """A sentence or two for each of the first ones, and how many more there are."""
    listed = [describe_change(record) for record in records[:MAX_CHANGES_LISTED]]
    more = len(records) - len(listed)
    return [*listed, f"And {more:,} more: “holdfast status --json” lists all of them."] if more else listed
