"""What may happen to a run: pure functions from one generation's state to the next, for `Manifest.commit`.

Invariant: promotions move forward and need the current fence; what is dropped from `kept` is never the resume point,
nor its fallback, nor being read.
"""

import time
from collections.abc import Callable, Collection

from storage.errors import ConflictError, RunBusyError
from storage.manifest import require_fence
from storage.retention import RetentionPolicy, find_being_read, kept_of, retain
from storage.run_state import CheckpointRecord, Holder, Lease, RunState, SegmentRecord, SetAsideRecord

Change = Callable[[RunState, int], RunState]


def take_lease(holder: Holder, world_size: int) -> Change:
    """Begin a segment: its fence is the generation that grants the lease."""

    def change(state: RunState, generation: int) -> RunState:
        if state.lease is not None:
            other = state.lease.holder
            raise RunBusyError(f"Run {state.run!r} was taken up by process {other.pid} on {other.host} just now.")
        first_step = state.promoted.step if state.promoted else 0
        lease = Lease(
            fence=generation, holder=holder, world_size=world_size, first_step=first_step, taken_at=time.time()
        )
        return state.model_copy(update={"lease": lease})

    return change


def end_segment(record: SegmentRecord) -> Change:
    """Give the lease back and remember how the segment ended."""

    def change(state: RunState, _generation: int) -> RunState:
        require_fence(state, record.fence)
        return state.model_copy(update={"lease": None, "segments": [*state.segments, record]})

    return change


def promote(checkpoint: CheckpointRecord, policy: RetentionPolicy) -> Change:
    """Make a validated checkpoint the resume point, and drop what the policy does not keep beside it."""

    def change(state: RunState, _generation: int) -> RunState:
        require_fence(state, checkpoint.fence)
        place, promoted = (checkpoint.step, checkpoint.fence), state.promoted
        if promoted is not None and place <= (promoted.step, promoted.fence):
            raise ConflictError(
                f"Promotion moves forward: step {checkpoint.step} of fence {checkpoint.fence} is not after the "
                f"promoted step {promoted.step} of fence {promoted.fence}."
            )
        kept = kept_of(retain([checkpoint, *state.kept], policy, find_being_read(state)))
        return state.model_copy(update={"promoted": checkpoint, "kept": kept})

    return change


def set_aside(step: int, path: str, reason: str, fence: int | None) -> Change:
    """Never use a damaged checkpoint again; the next older one becomes the resume point.

    Only who holds the lease `fence` may do so, or anybody (None) while nobody holds one: what looks missing to a
    process that comes late may have been deleted by the run's new holder.

    Metrics of a later step than the new resume point are dropped: that step has to be reached again.
    """

    def change(state: RunState, _generation: int) -> RunState:
        if fence is not None:
            require_fence(state, fence)
        elif state.lease is not None:
            raise RunBusyError(f"Run {state.run!r} was taken up by another process just now.")
        kept = [checkpoint for checkpoint in state.kept if checkpoint.path != path]
        record = SetAsideRecord(step=step, path=path, reason=reason, set_aside_at=time.time())
        update: dict[str, object] = {
            "kept": kept,
            "promoted": kept[0] if kept else None,
            "set_aside": [*state.set_aside, record],
        }
        if state.metrics_step is not None and (not kept or kept[0].step < state.metrics_step):
            update |= {"metrics": None, "metrics_step": None}
        return state.model_copy(update=update)

    return change


def prune(dropped: Collection[str], discarded: Collection[str]) -> Change:
    """Keep the checkpoints in the folders `dropped` no longer, nor the files of the set-aside ones in `discarded`.

    Needs no lease: what it may drop is nobody's. Raises `ConflictError` if meanwhile one of them became the resume
    point, its fallback, or what a segment began with.
    """

    def change(state: RunState, _generation: int) -> RunState:
        protected = {record.path for record in state.kept[:2]} | find_being_read(state)
        if protected & set(dropped):
            raise ConflictError(
                f"Run {state.run!r} went on meanwhile and needs what was to be dropped. Prune it again."
            )
        set_aside = [
            record.model_copy(update={"is_discarded": record.is_discarded or record.path in discarded})
            for record in state.set_aside
        ]
        kept = [record for record in state.kept if record.path not in dropped]
        return state.model_copy(update={"kept": kept, "set_aside": set_aside})

    return change


def reconfigure(config: dict[str, object], steps_total: int) -> Change:
    """Go on with a changed configuration. Raises `RunBusyError` while a segment runs with the old one."""

    def change(state: RunState, _generation: int) -> RunState:
        if state.lease is not None:
            raise RunBusyError(f"Run {state.run!r} was taken up by another process just now.")
        return state.model_copy(update={"config": config, "steps_total": steps_total})

    return change


def record_metrics(metrics: dict[str, float], step: int) -> Change:
    """Remember the test metrics of the promoted checkpoint at `step`."""

    def change(state: RunState, _generation: int) -> RunState:
        if state.promoted is None or state.promoted.step != step:
            raise ConflictError(f"Metrics of step {step} do not belong to the promoted checkpoint.")
        return state.model_copy(update={"metrics": metrics, "metrics_step": step})

    return change
