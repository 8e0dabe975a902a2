"""Validating a checkpoint, outside the processes that wrote it, and making it the run's resume point.

Invariant: nothing is promoted of which not every byte was hashed and every value looked at, and nothing is deleted
before the generation that no longer names it is committed. A loss curve of before, beside it, is no part of it.
"""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from storage.checkpoints.checkpoints import (
    STATE_NAME,
    FoundCheckpoint,
    find_complete_checkpoints,
    hash_weights,
    read_checkpoint_file,
    validate_for_promotion,
    verify_checkpoint,
)
from storage.checkpoints.history import newest_part_of
from storage.checkpoints.strays import delete_strays
from storage.errors import CorruptObjectError, StoreError
from storage.objects.addresses import run_address
from storage.objects.history import read_history_part
from storage.objects.store import Store
from storage.runs.manifest import Generation
from storage.runs.metric_values import MetricValue, find_not_finite
from storage.runs.run_state import (
    CheckpointRecord,
    Holder,
    NotFiniteMetrics,
    RefusedRecord,
    RunState,
    ValidationFigures,
)
from storage.runs.transitions import promote, refuse, set_aside
from tasks.configuration import RunConfig
from tasks.places import RunPlaces
from tasks.running.changes import find_changes
from tasks.running.gate import find_refusal, read_figures
from tasks.telling.alerts import FALLBACK, GATE_REFUSED, alert
from tasks.telling.announce import warn

# `promote_checkpoint`, or what does it as a step that Prefect shows: configuration, places, path, digest.
Promote = Callable[[RunConfig, RunPlaces, str, str | None], CheckpointRecord | None]


def promote_checkpoint(
    config: RunConfig, places: RunPlaces, path: str, digest: str | None = None, holder: Holder | None = None
) -> CheckpointRecord | None:
    """Validate the complete checkpoint in `path` and promote it; None if it is sound but does not pass the gate.

    With `holder` only while that one watches the segment. Raises `CorruptObjectError`, `FencedError`, `ConflictError`.
    """
    found = verify_checkpoint(places.store, path, digest)
    head = places.manifest.load_head().state
    validate_for_promotion(found, places.store, config.train.batch_size, head.rollbacks)
    state = json.loads(read_checkpoint_file(places.store, found, STATE_NAME))
    _look_at_history(places.store, state)
    _promote_best_before(config, places, found, state, holder)
    record, figures = _describe(found, places.store, state), read_figures(state)
    refusal = find_refusal(figures, record.step, config.train, config.checkpoint.gate)
    if figures is not None and refusal is not None:
        _refuse(places, record, figures, refusal, holder)
        return None
    changes = find_changes(places.store, head, found.index, config.train)
    change = promote(record, config.checkpoint.retention(config.divergence), changes, holder)
    clear_strays(places, places.manifest.commit(f"promoted step {record.step}", change))
    return record


def _promote_best_before(
    config: RunConfig, places: RunPlaces, found: FoundCheckpoint, state: Mapping[str, Any], holder: Holder | None
) -> None:
    """Promote the best model's checkpoint, if `found` is a later one and would overtake it: none can then follow.

    It is not promoted yet where the store did not answer, or where nobody supervised the ranks any more.
    """
    step = (state.get("best") or {}).get("step")
    point = places.manifest.load_head().state.promoted
    is_overtaken = step is not None and (point.step if point else 0) < step < found.index.step
    if not config.checkpoint.keep_best or not is_overtaken:
        return
    for checkpoint in find_complete_checkpoints(places.store, places.manifest.run, found.index.fence):
        if checkpoint.index.step == step:
            try:
                promote_checkpoint(config, places, checkpoint.path, checkpoint.digest, holder)
            except CorruptObjectError as error:
                warn(f"The best model's checkpoint, of step {step:,}, is damaged and cannot be kept: {error}")


def _look_at_history(store: Store, state: Mapping[str, Any]) -> None:
    """Say if the newest part of the loss curve is damaged: no step needs it, so none is trained again for it."""
    history = newest_part_of(state)
    try:
        if history is not None:
            read_history_part(store, history)
    except CorruptObjectError as error:
        warn(f"A part of the loss curve is lost, and the report's curve will begin after it: {error}")


def clear_strays(places: RunPlaces, head: Generation) -> None:
    """Delete what `head` no longer names; a store that cannot delete just now is no reason to stop."""
    try:
        delete_strays(places.store, head)
    except StoreError as error:
        warn(f"A checkpoint that is no longer kept could not be deleted; the next promotion tries again: {error}")


def _refuse(
    places: RunPlaces, record: CheckpointRecord, figures: ValidationFigures, refusal: str, holder: Holder | None
) -> None:
    """Remember that a sound checkpoint is not good enough, unless a later one was found to be so before."""
    known = places.manifest.load_head().state.refused
    if known and (record.step, record.fence) <= (known[-1].checkpoint.step, known[-1].checkpoint.fence):
        return
    entry = RefusedRecord(checkpoint=record, validation=figures, reason=refusal, refused_at=time.time())
    head = places.manifest.commit(f"refused step {record.step}", refuse(entry, holder))
    message = f"Checkpoint of step {record.step} does not pass the quality gate and is not promoted: {refusal}."
    run = places.manifest.run
    alert(GATE_REFUSED, run_address(places.store, run), message, run=run, step=record.step)
    clear_strays(places, head)


def set_aside_damaged(places: RunPlaces, step: int, path: str, reason: str, fence: int | None) -> RunState:
    """Take a damaged checkpoint out of use, with its reason, and say where the run goes on instead."""
    state = places.manifest.commit(f"set aside step {step}", set_aside(step, path, reason, fence)).state
    resume_step = state.promoted.step if state.promoted else 0
    where = f"step {resume_step:,}" if state.promoted else "step 0, as no older checkpoint is left"
    message = (
        f"Checkpoint of step {step:,} is damaged and set aside: {reason.removesuffix('.')}. The resume point is "
        f"{where}. Unless a newer one is promoted first, the steps after it are trained again, with the same result."
    )
    fields = {"step": step, "resume_step": resume_step}
    alert(FALLBACK, f"{places.store.address}/{path}", message, run=places.manifest.run, **fields)
    return state


def fall_back_to_valid(places: RunPlaces) -> RunState:
    """Hash the resume point; while it is damaged, set it aside and take the next older one."""
    state = places.manifest.load_head().state
    while state.promoted is not None:
        point = state.promoted
        try:
            verify_checkpoint(places.store, point.path, point.digest)
        except CorruptObjectError as error:
            state = set_aside_damaged(places, point.step, point.path, str(error), fence=None)
        else:
            break
    return state


def _find_metric(found: FoundCheckpoint, state: Mapping[str, Any]) -> MetricValue | None:
    """The headline metric of the validation made at the checkpoint's step, or None if none was, or not defined."""
    if state.get("validated_step") != found.index.step:
        return None
    metric: MetricValue | None = state["history"]["validation"][-1]["metrics"].get(state["best"]["metric"])
    return metric


def _find_not_finite(state: Mapping[str, Any]) -> NotFiniteMetrics | None:
    for validation in state["history"]["validation"][-1:]:
        if metrics := find_not_finite(validation["metrics"]):
            return NotFiniteMetrics(step=validation["step"], metrics=metrics)
    return None


def _describe(found: FoundCheckpoint, store: Store, state: Mapping[str, Any]) -> CheckpointRecord:
    index = found.index
    return CheckpointRecord(
        step=index.step,
        path=found.path,
        digest=found.digest,
        weights_sha256=hash_weights(store, found),
        num_bytes=index.num_bytes,
        fence=index.fence,
        promoted_at=time.time(),
        metric=_find_metric(found, state),
        not_finite=_find_not_finite(state),
    )


def promote_newest(
    config: RunConfig, places: RunPlaces, found: list[FoundCheckpoint], promote_one: Promote = promote_checkpoint
) -> CheckpointRecord | None:
    """Promote the newest one of a segment's complete checkpoints that is valid and passes the gate, newest first.

    Damaged ones are set aside. One that was refused is looked at again only if another gate lets it pass.
    """
    state = places.manifest.load_head().state
    promoted = state.promoted
    for checkpoint in found:
        if any(entry.checkpoint.path == checkpoint.path and _is_refused(entry, config) for entry in state.refused):
            continue
        place = (checkpoint.index.step, checkpoint.index.fence)
        if promoted is not None and place <= (promoted.step, promoted.fence):
            return None
        try:
            record = promote_one(config, places, checkpoint.path, checkpoint.digest)
            if record is not None:
                return record
        except CorruptObjectError as error:
            set_aside_damaged(places, checkpoint.index.step, checkpoint.path, str(error), checkpoint.index.fence)
    return None


def _is_refused(entry: RefusedRecord, config: RunConfig) -> bool:
    gate = config.checkpoint.gate
    return find_refusal(entry.validation, entry.checkpoint.step, config.train, gate) is not None
