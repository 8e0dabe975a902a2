"""Validating a checkpoint, outside the processes that wrote it, and making it the run's resume point.

Invariant: nothing is promoted of which not every byte was hashed and every value looked at, and nothing is deleted
before the generation that no longer names it is committed.
"""

import json
import math
import time

from storage.checkpoints import (
    STATE_NAME,
    FoundCheckpoint,
    read_checkpoint_file,
    validate_for_promotion,
    verify_checkpoint,
)
from storage.errors import CorruptObjectError, StoreError
from storage.run_state import CheckpointRecord, RunState
from storage.store import Store
from storage.strays import delete_strays
from storage.transitions import promote, set_aside
from tasks.announce import announce, warn
from tasks.configuration import RunConfig
from tasks.places import RunPlaces


def promote_checkpoint(config: RunConfig, places: RunPlaces, path: str, digest: str | None = None) -> CheckpointRecord:
    """Validate the complete checkpoint in `path` and promote it. Raises `CorruptObjectError`, or `FencedError`."""
    found = verify_checkpoint(places.store, path, digest)
    validate_for_promotion(found, places.store, config.train.batch_size)
    record = _describe(found, _find_metric(found, places.store))
    head = places.manifest.commit(f"promoted step {record.step}", promote(record, config.checkpoint.retention))
    try:
        delete_strays(places.store, head)
    except StoreError as error:
        warn(f"A checkpoint that is no longer kept could not be deleted; the next promotion tries again: {error}")
    return record


def set_aside_damaged(places: RunPlaces, step: int, path: str, reason: str, fence: int | None) -> RunState:
    """Take a damaged checkpoint out of use, with its reason, and say so."""
    warn(f"Checkpoint of step {step} is damaged and set aside: {reason}")
    return places.manifest.commit(f"set aside step {step}", set_aside(step, path, reason, fence)).state


def fall_back_to_valid(places: RunPlaces) -> RunState:
    """Hash the resume point; while it is damaged, set it aside and take the next older one."""
    state = places.manifest.load_head().state
    while state.promoted is not None:
        point = state.promoted
        try:
            verify_checkpoint(places.store, point.path, point.digest)
        except CorruptObjectError as error:
            state = set_aside_damaged(places, point.step, point.path, str(error), fence=None)
            where = f"step {state.promoted.step}" if state.promoted else "step 0: no older checkpoint is left"
            announce(f"Falling back to {where}. The steps after it are trained again, with the same result.")
        else:
            break
    return state


def _find_metric(found: FoundCheckpoint, store: Store) -> float | None:
    """The headline metric of the validation made at the checkpoint's step, or None if none was made there."""
    state = json.loads(read_checkpoint_file(store, found, STATE_NAME))
    if state.get("validated_step") != found.index.step:
        return None
    metric: float = state["history"]["validation"][-1]["metrics"][state["best"]["metric"]]
    return metric if math.isfinite(metric) else None


def _describe(found: FoundCheckpoint, metric: float | None) -> CheckpointRecord:
    index = found.index
    return CheckpointRecord(
        step=index.step,
        path=found.path,
        digest=found.digest,
        weights_sha256=index.weights_sha256,
        num_bytes=index.num_bytes,
        fence=index.fence,
        promoted_at=time.time(),
        metric=metric,
    )


def promote_newest(config: RunConfig, places: RunPlaces, found: list[FoundCheckpoint]) -> CheckpointRecord | None:
    """Promote the newest valid one of a segment's complete checkpoints, newest first; damaged ones are set aside."""
    promoted = places.manifest.load_head().state.promoted
    for checkpoint in found:
        place = (checkpoint.index.step, checkpoint.index.fence)
        if promoted is not None and place <= (promoted.step, promoted.fence):
            return None
        try:
            return promote_checkpoint(config, places, checkpoint.path, checkpoint.digest)
        except CorruptObjectError as error:
            set_aside_damaged(places, checkpoint.index.step, checkpoint.path, str(error), checkpoint.index.fence)
    return None
