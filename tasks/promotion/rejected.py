"""Going on from a checkpoint that the quality gate had refused, once another gate lets it pass.

Invariant: nothing is trained again for it. And a last checkpoint that still does not pass ends the run with one error:
training again as before would come to the same model, for ever.
"""

from functools import partial

from storage.checkpoints.checkpoints import verify_checkpoint
from storage.errors import CheckpointUnusableError, ConflictError, QualityGateError, RunBusyError
from storage.runs.run_state import CheckpointRecord, RunState
from storage.runs.transitions import promote_refused
from tasks.configuration.run import RunConfig
from tasks.console.announce import announce
from tasks.promotion.changes import find_changes
from tasks.promotion.gate import describe_end, find_refusal, is_last
from tasks.promotion.promotion import clear_strays
from tasks.run_paths import RunPlaces
from tasks.verification.quarantine import put_aside
from tasks.verification.verdicts import Judge


def judge_again(config: RunConfig, places: RunPlaces, state: RunState) -> RunState:
    """Promote the refused checkpoint that the last segment left, if it passes now; where the run stands then.

    Raises `QualityGateError` if it is the last one and does not pass, `RunBusyError` if somebody took the run up.
    """
    point = state.refused_point
    if point is None:
        return state
    refusal = find_refusal(point.validation, point.checkpoint.step, config.train, config.checkpoint.gate)
    if refusal is None:
        return _promote(config, places, point.checkpoint)
    if is_last(point.validation, point.checkpoint.step, config.train):
        raise QualityGateError(describe_end(config.run, point, refusal))
    return state


def _promote(config: RunConfig, places: RunPlaces, checkpoint: CheckpointRecord) -> RunState:
    """It was validated before it was refused: what may have changed since are its bytes."""
    try:
        look = partial(verify_checkpoint, places.store, checkpoint.path, checkpoint.digest)
        found = Judge(config.retry).judge(places, checkpoint.path, look)
    except CheckpointUnusableError as unusable:
        return put_aside(places, checkpoint.step, checkpoint.path, unusable, fence=None)
    changes = find_changes(places.store, places.manifest.load_head().state, found.index, config.train)
    change = promote_refused(checkpoint.path, config.checkpoint.retention(config.divergence), changes)
    try:
        head = places.manifest.commit(f"promoted step {checkpoint.step}, refused before", change)
    except RunBusyError:
        raise
    except ConflictError as error:
        raise RunBusyError(f"Run {config.run!r} was just taken over by another process. {error}") from error
    announce(f"Checkpoint of step {checkpoint.step:,} passes the quality gate now and is promoted.")
    clear_strays(places, head)
    return head.state
