"""What may happen to a run: pure functions from one generation's state to the next, for `Manifest.commit`.

Invariant: promotions move forward and need the current fence; what a policy drops from `kept` is never the resume
point, nor its fallback, nor being read. Backward, a run moves by what `storage.runs.rollbacks` does, alone.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from storage.errors import ConflictError, RunBusyError
from storage.runs.code_version import own_version
from storage.runs.manifest import require_fence
from storage.runs.metric_values import MetricValue
from storage.runs.retention import RetentionPolicy, find_being_read, kept_of, retain
from storage.runs.run_records import ChangeRecord, OverrideValue, TestedRecord
from storage.runs.run_state import (
    CheckpointRecord,
    Holder,
    JobRecord,
    Lease,
    RejectedRecord,
    RunState,
    SegmentRecord,
)

Change = Callable[[RunState, int], RunState]


def take_lease(
    holder: Holder,
    world_size: int,
    work: Literal["train", "evaluate"] = "train",
    scratch: Callable[[int], Path] | None = None,
    job: Callable[[int], JobRecord | None] = lambda _fence: None,
) -> Change:
    """Begin a segment or an evaluation: its fence is the generation that grants the lease.

    For a fence `scratch` gives the folder of its ranks, and `job` the cluster's job in which they will be.
    """

    def change(state: RunState, generation: int) -> RunState:
        if state.lease is not None:
            other = state.lease.holder
            raise RunBusyError(f"Run {state.run!r} was just taken over by process {other.pid} on {other.host}.")
        first_step = state.promoted.step if state.promoted else 0
        lease = Lease(
            fence=generation,
            holder=holder,
            world_size=world_size,
            first_step=first_step,
            taken_at=time.time(),
            planned_steps=state.steps_total,
            work=work,
            scratch=None if scratch is None else str(scratch(generation)),
            job=job(generation),
            holdfast=own_version(),
        )
        return state.model_copy(update={"lease": lease})

    return change


def take_over(lease: Lease, holder: Holder) -> Change:
    """Hold a lease whose ranks go on working, in place of a process that has died.

    Who holds it already, since the answer to an earlier call was lost, goes on holding it. Raises `RunBusyError` if
    another process was quicker, `FencedError` if it has ended.
    """

    def change(state: RunState, _generation: int) -> RunState:
        require_fence(state, lease.fence)
        assert state.lease is not None
        if state.lease.holder not in (lease.holder, holder):
            other = state.lease.holder
            raise RunBusyError(f"Run {state.run!r} was just taken over by process {other.pid} on {other.host}.")
        return state.model_copy(update={"lease": state.lease.model_copy(update={"holder": holder})})

    return change


def end_segment(record: SegmentRecord) -> Change:
    """Give the lease back and remember how the segment ended."""

    def change(state: RunState, _generation: int) -> RunState:
        require_fence(state, record.fence)
        return state.model_copy(update={"lease": None, "segments": [*state.segments, record]})

    return change


def end_evaluation(fence: int) -> Change:
    """Give the lease of an evaluation back. It is no segment, and leaves no record."""

    def change(state: RunState, _generation: int) -> RunState:
        require_fence(state, fence)
        return state.model_copy(update={"lease": None})

    return change


def promote(
    checkpoint: CheckpointRecord,
    policy: RetentionPolicy,
    changes: Sequence[ChangeRecord] = (),
    holder: Holder | None = None,
) -> Change:
    """Make a validated checkpoint the resume point, and drop what the policy does not keep beside it.

    `changes` are those since the resume point before. With `holder` only if that one still watches the segment: another
    one may have been given the same fence. Raises `FencedError`, `ConflictError`.
    """

    def change(state: RunState, _generation: int) -> RunState:
        require_fence(state, checkpoint.fence)
        _require_holder(state, holder)
        return _moved_forward(state, checkpoint, policy, changes)

    return change


def reject(record: RejectedRecord, holder: Holder | None = None) -> Change:
    """Remember a sound checkpoint that did not pass the quality gate. Those of an earlier one may go.

    With `holder` only if that one still watches the segment.
    """

    def change(state: RunState, _generation: int) -> RunState:
        require_fence(state, record.checkpoint.fence)
        _require_holder(state, holder)
        latest = state.rejected[-1].checkpoint if state.rejected else None
        for earlier in filter(None, (state.promoted, latest)):
            _require_later(record.checkpoint, earlier)
        discarded = [r.model_copy(update={"is_discarded": True}) for r in state.rejected if not r.is_discarded]
        return state.model_copy(update={"rejected": [*discarded, record]})

    return change


def promote_rejected(path: str, policy: RetentionPolicy, changes: Sequence[ChangeRecord] = ()) -> Change:
    """Make the rejected checkpoint that the last segment left the resume point: the gate is another one now.

    `changes` are those since the resume point before. Needs no lease, and it must be free: raises `RunBusyError`, or
    `ConflictError` if it is not that checkpoint.
    """

    def change(state: RunState, _generation: int) -> RunState:
        if state.lease is not None:
            raise RunBusyError(f"Run {state.run!r} was just taken over by another process.")
        point = state.rejected_point
        if point is None or point.checkpoint.path != path:
            raise ConflictError(f"Run {state.run!r} was continued by another process, without the checkpoint {path}.")
        *segments, last = state.segments
        lost = max(0, last.last_step - point.checkpoint.step)
        counted = [*segments, last.model_copy(update={"steps_lost": lost})]
        moved = _moved_forward(state, point.checkpoint, policy, changes)
        return moved.model_copy(update={"segments": counted})

    return change


def prune(dropped: Collection[str], discarded: Collection[str]) -> Change:
    """Keep the checkpoints in the folders `dropped` no longer, nor the files of the quarantined ones in `discarded`.

    Needs no lease: what it may drop is not in use. Raises `ConflictError` if meanwhile one of them became the resume
    point, its fallback, or what a segment began with.
    """

    def change(state: RunState, _generation: int) -> RunState:
        protected = {record.path for record in state.kept[:2]} | find_being_read(state)
        if protected & set(dropped):
            raise ConflictError(
                f"Run {state.run!r} was continued by another process and needs a checkpoint that was to be "
                "deleted. Run prune again."
            )
        quarantined = [
            record.model_copy(update={"is_discarded": record.is_discarded or record.path in discarded})
            for record in state.quarantined
        ]
        kept = [record for record in state.kept if record.path not in dropped]
        return state.model_copy(update={"kept": kept, "quarantined": quarantined})

    return change


def set_overrides(values: Mapping[str, OverrideValue]) -> Change:
    """Remember, by dotted field, what a person gave the run: it decides nothing until the run is configured with it."""

    def change(state: RunState, _generation: int) -> RunState:
        return state.model_copy(update={"overrides": dict(values)})

    return change


def reconfigure(config: dict[str, object], steps_total: int) -> Change:
    """Go on with a changed configuration. What a person gave ends where it has another value.

    Raises `RunBusyError` while a segment runs with the old one.
    """

    def change(state: RunState, _generation: int) -> RunState:
        if state.lease is not None:
            raise RunBusyError(f"Run {state.run!r} was just taken over by another process.")
        overrides = {
            field: entry for field, entry in state.overrides.items() if _value_of(config, field) == entry.value
        }
        update = {"config": config, "overrides": overrides, "steps_total": steps_total}
        return state.model_copy(update=update)

    return change


def _value_of(config: Mapping[str, Any], field: str) -> object:
    section, name = field.split(".")
    return config.get(section, {}).get(name)


def record_metrics(metrics: dict[str, MetricValue], step: int, best: TestedRecord | None = None) -> Change:
    """Remember the test metrics of the promoted checkpoint at `step`, and of the best one where that is another."""

    def change(state: RunState, _generation: int) -> RunState:
        if state.promoted is None or state.promoted.step != step:
            raise ConflictError(f"Metrics of step {step} do not belong to the promoted checkpoint.")
        return state.model_copy(update={"metrics": metrics, "metrics_step": step, "best_tested": best})

    return change


def _require_holder(state: RunState, holder: Holder | None) -> None:
    lease = state.lease
    if holder is not None and lease is not None and lease.holder != holder:
        raise ConflictError(f"Run {state.run!r} is watched by process {lease.holder.pid} on {lease.holder.host} now.")


def _moved_forward(
    state: RunState, checkpoint: CheckpointRecord, policy: RetentionPolicy, changes: Sequence[ChangeRecord]
) -> RunState:
    """The state with a later resume point, beside it what the policy keeps, and of what was rejected only the later."""
    if state.promoted is not None:
        _require_later(checkpoint, state.promoted)
    kept = kept_of(retain([checkpoint, *state.kept], policy, find_being_read(state)))
    rejected = [record for record in state.rejected if _order(record.checkpoint) > _order(checkpoint)]
    changes = [*state.changes, *changes]
    return state.model_copy(update={"promoted": checkpoint, "kept": kept, "rejected": rejected, "changes": changes})


def _require_later(checkpoint: CheckpointRecord, earlier: CheckpointRecord) -> None:
    if _order(checkpoint) <= _order(earlier):
        raise ConflictError(
            f"Promotion moves forward: step {checkpoint.step} of segment {checkpoint.fence} is not after step "
            f"{earlier.step} of segment {earlier.fence}."
        )


def _order(checkpoint: CheckpointRecord) -> tuple[int, int]:
    return checkpoint.step, checkpoint.fence
