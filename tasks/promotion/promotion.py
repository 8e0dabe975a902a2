"""Validating a checkpoint, outside the processes that wrote it, and making it the run's resume point.

Invariant: nothing is promoted of which not every byte was hashed and every value looked at, and nothing is deleted
before the generation that no longer names it is committed. A loss curve of before, beside it, is no part of it.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from storage.checkpoints.checkpoints import (
    STATE_NAME,
    FoundCheckpoint,
    hash_weights,
    list_complete_checkpoints,
    read_checkpoint_file,
    validate_for_promotion,
    verify_checkpoint,
)
from storage.checkpoints.history import newest_part_of
from storage.checkpoints.strays import delete_strays
from storage.errors import (
    BestNotReadError,
    CheckpointUnusableError,
    CorruptObjectError,
    ObjectUnreadableError,
    StoreError,
)
from storage.objects.addresses import run_address
from storage.objects.history import read_history_part
from storage.objects.store import Store
from storage.runs.manifest import Generation
from storage.runs.metric_values import MetricValue, find_not_finite
from storage.runs.rollbacks.quarantine import find_standing, take_back
from storage.runs.run_records import ChangeRecord
from storage.runs.run_state import (
    CheckpointRecord,
    Holder,
    NotFiniteMetrics,
    RejectedRecord,
    RunState,
    ValidationFigures,
)
from storage.runs.transitions import promote, reject
from tasks.configuration.run import RunConfig
from tasks.console.announce import announce, warn
from tasks.prefect_bridge.alerts import GATE_REJECTED, alert
from tasks.promotion.changes import find_changes
from tasks.promotion.gate import find_rejection, read_figures
from tasks.reporting.quarantined import what_became_of
from tasks.run_paths import RunPaths
from tasks.verification.quarantine import take_out_of_use
from tasks.verification.verdicts import VerdictMaker

# `promote_checkpoint`, or what does it as a step that Prefect shows: configuration, run paths, path, digest.
Promote = Callable[[RunConfig, RunPaths, str, str | None], CheckpointRecord | None]


def promote_checkpoint(
    config: RunConfig, run_paths: RunPaths, path: str, digest: str | None = None, holder: Holder | None = None
) -> CheckpointRecord | None:
    """Validate the complete checkpoint in `path` and promote it; None if it is sound but does not pass the gate.

    With `holder` only while that one watches the segment. Raises `CorruptObjectError` and `ObjectUnreadableError`,
    neither of which is a verdict yet, `BestNotReadError` for the same of the best model's, `FencedError`,
    `ConflictError`.
    """
    head = run_paths.manifest.load_head().state
    valid = validate(config, run_paths, head, path, digest)
    record = valid.record
    _promote_best_before(config, run_paths, valid, holder)
    if valid.figures is not None and valid.rejection is not None:
        _reject(run_paths, record, valid.figures, valid.rejection, holder)
        return None
    change = promote(record, config.checkpoint.retention(config.divergence), valid.changes, holder)
    clear_strays(run_paths, run_paths.manifest.commit(f"promoted step {record.step}", change))
    return record


@dataclass(frozen=True)
class ValidCheckpoint:
    """A checkpoint of which every byte and every value was looked at, and the gate's verdict."""

    record: CheckpointRecord
    figures: ValidationFigures | None
    rejection: str | None
    changes: list[ChangeRecord]


def validate(
    config: RunConfig, run_paths: RunPaths, head: RunState, path: str, digest: str | None = None
) -> ValidCheckpoint:
    """Look at every byte of the checkpoint in `path`. Raises `CorruptObjectError`, and what `reading` raises."""
    found = verify_checkpoint(run_paths.store, path, digest)
    validate_for_promotion(found, run_paths.store, config.train.batch_size, head.rollbacks)
    state = json.loads(read_checkpoint_file(run_paths.store, found, STATE_NAME))
    _look_at_history(run_paths.store, state)
    record, figures = _describe(found, run_paths.store, state), read_figures(state)
    rejection = find_rejection(figures, record.step, config.train, config.checkpoint.gate)
    return ValidCheckpoint(record, figures, rejection, find_changes(run_paths.store, head, found.index, config.train))


def _promote_best_before(config: RunConfig, run_paths: RunPaths, later: ValidCheckpoint, holder: Holder | None) -> None:
    """Promote the best model's checkpoint, if `later` is a later one and would overtake it: none can then follow.

    It is not promoted yet where the store did not answer, or where the ranks were not supervised any more. Raises
    `BestNotReadError`.
    """
    step = later.figures.best_step if later.figures is not None else None
    state = run_paths.manifest.load_head().state
    if not config.checkpoint.keep_best or step is None:
        return
    if not (state.promoted.step if state.promoted else 0) < step < later.record.step:
        return
    out_of_use_before = {aside.path for aside in state.quarantined}
    for best_step, path in list_complete_checkpoints(run_paths.store, run_paths.manifest.run, later.record.fence):
        if best_step == step and path not in out_of_use_before:
            try:
                promote_checkpoint(config, run_paths, path, None, holder)
            except (CorruptObjectError, ObjectUnreadableError) as error:
                raise BestNotReadError(step, path, error) from error


def _look_at_history(store: Store, state: Mapping[str, Any]) -> None:
    """Warn if the newest part of the loss curve is damaged: no step needs it, so none is trained again for it."""
    history = newest_part_of(state)
    try:
        if history is not None:
            read_history_part(store, history)
    except (CorruptObjectError, ObjectUnreadableError) as error:
        warn(f"A part of the loss curve cannot be read, and the report's curve will begin after it: {error}")


def clear_strays(run_paths: RunPaths, head: Generation) -> None:
    """Delete what `head` no longer names; a store that cannot delete just now is no reason to stop."""
    try:
        delete_strays(run_paths.store, head)
    except StoreError as error:
        warn(f"A checkpoint that is no longer kept could not be deleted; the next promotion tries again: {error}")


def _reject(
    run_paths: RunPaths, record: CheckpointRecord, figures: ValidationFigures, rejection: str, holder: Holder | None
) -> None:
    """Remember that a sound checkpoint is not good enough, unless a later one was found to be so before."""
    known = run_paths.manifest.load_head().state.rejected
    if known and (record.step, record.fence) <= (known[-1].checkpoint.step, known[-1].checkpoint.fence):
        return
    entry = RejectedRecord(checkpoint=record, validation=figures, reason=rejection, rejected_at=time.time())
    head = run_paths.manifest.commit(f"rejected step {record.step}", reject(entry, holder))
    message = f"Checkpoint of step {record.step} does not pass the quality gate and is not promoted: {rejection}."
    run = run_paths.manifest.run
    alert(GATE_REJECTED, run_address(run_paths.store, run), message, run=run, step=record.step)
    clear_strays(run_paths, head)


def look_again(config: RunConfig, run_paths: RunPaths) -> RunState:
    """Use again the newest sound checkpoint of those quarantined or passed over. The lease must be free.

    One look: what cannot be read now is looked at by the next start.
    """
    state = run_paths.manifest.load_head().state
    for aside in find_standing(state):
        try:
            valid = validate(config, run_paths, state, aside.path, aside.digest)
        except (CorruptObjectError, ObjectUnreadableError):
            continue
        if valid.rejection is None:
            change = take_back(valid.record, valid.changes)
            state = run_paths.manifest.commit(f"step {aside.step} is used again", change).state
            announce(f"The checkpoint of step {aside.step:,} is sound: it is used again. It {what_became_of(aside)}.")
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
    config: RunConfig,
    run_paths: RunPaths,
    fence: int,
    verdicts: VerdictMaker,
    promote_one: Promote = promote_checkpoint,
) -> CheckpointRecord | None:
    """Promote the newest complete checkpoint of the segment `fence` that is valid and passes the gate, newest first.

    Those are quarantined or passed over for which `verdicts` decides that. One that was rejected is looked at again
    only if another gate lets it pass.
    """
    promoted = run_paths.manifest.load_head().state.promoted
    for step, path in list_complete_checkpoints(run_paths.store, run_paths.manifest.run, fence):
        if path in _find_passed(config, run_paths):
            continue
        if promoted is not None and (step, fence) <= (promoted.step, promoted.fence):
            return None
        record = _promote_checked(run_paths, step, path, fence, verdicts, partial(promote_one, config, run_paths))
        if record is not None:
            return record
    return None


def _promote_checked(
    run_paths: RunPaths,
    step: int,
    path: str,
    fence: int,
    verdicts: VerdictMaker,
    promote_one: Callable[[str, None], CheckpointRecord | None],
) -> CheckpointRecord | None:
    """Promote one checkpoint, or put it aside after a verdict; before it the best model's, if that could not be read.

    None if it is taken out of use, or does not pass the gate.
    """
    try:
        return verdicts.check(run_paths, path, partial(promote_one, path, None))
    except BestNotReadError as best:
        _promote_checked(run_paths, best.step, best.path, fence, verdicts, promote_one)
        return _promote_checked(run_paths, step, path, fence, verdicts, promote_one)
    except CheckpointUnusableError as unusable:
        take_out_of_use(run_paths, step, path, unusable, fence)
        return None


def _find_passed(config: RunConfig, run_paths: RunPaths) -> set[str]:
    """The folders of those that are not promoted: taken out of use, or rejected by a gate that is still the same."""
    state = run_paths.manifest.load_head().state
    rejected = {entry.checkpoint.path for entry in state.rejected if _is_rejected(entry, config)}
    return rejected | {aside.path for aside in state.quarantined}


def _is_rejected(entry: RejectedRecord, config: RunConfig) -> bool:
    gate = config.checkpoint.gate
    return find_rejection(entry.validation, entry.checkpoint.step, config.train, gate) is not None
