"""What a promotion finds changed since the resume point before it, of all that the bits of the weights depend on.

Invariant: found out from the records of both checkpoints and their segments, and committed together with the
promotion: no process that dies in between takes the knowledge with it. A change that was taken back before a checkpoint
was made with it leaves no trace, as it left none in the model.
"""

from collections.abc import Mapping

from storage.checkpoints.checkpoints import CheckpointIndex, load_checkpoint
from storage.errors import CorruptObjectError, ObjectUnreadableError
from storage.objects.store import Store
from storage.runs.code_version import NAME, tell_apart
from storage.runs.run_records import ChangeRecord
from storage.runs.run_state import CheckpointRecord, RunState
from training.configuration import TrainConfig


def find_changes(store: Store, state: RunState, index: CheckpointIndex, train: TrainConfig) -> list[ChangeRecord]:
    """The changes between the resume point and the checkpoint with this index, which is about to replace it."""
    point = state.promoted
    if point is None or point.fence == index.fence:
        return []
    changes = _of_segments(state, point.fence, index.fence, train)
    changes |= _of_software(_read_index(store, point), index)
    return [ChangeRecord(step=point.step, what=what, before=old, now=new) for what, (old, new) in changes.items()]


def _of_segments(state: RunState, fence_before: int, fence: int, train: TrainConfig) -> dict[str, tuple[str, str]]:
    before, now = state.find_segment(fence_before), state.find_segment(fence)
    if before is None or now is None:
        return {}
    changes = {}
    if before.planned_steps != now.planned_steps:
        changes["train.steps"] = (str(before.planned_steps), str(now.planned_steps))
    if before.world_size != now.world_size and train.sum == "fast":  # with exact sums it decides nothing
        changes["train.ranks"] = (str(before.world_size), str(now.world_size))
    return changes


def _of_software(before: CheckpointIndex | None, now: CheckpointIndex) -> dict[str, tuple[str, str]]:
    if before is None:
        return {}
    other = tell_apart(before.holdfast, now.holdfast)
    return _of_versions(before.versions, now.versions) | ({NAME: other} if other is not None else {})


def _of_versions(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Of what both of them name: a GPU names more than a CPU."""
    return {name: (before[name], now[name]) for name in sorted(before.keys() & now.keys()) if before[name] != now[name]}


def _read_index(store: Store, point: CheckpointRecord) -> CheckpointIndex | None:
    try:
        return load_checkpoint(store, point.path, point.digest).index
    except (CorruptObjectError, ObjectUnreadableError):
        return None  # it was sound when the segment began with it; a scrub, or a rollback to it, will find out
