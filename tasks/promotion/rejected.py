"""Going on from a checkpoint that the quality gate had rejected, once another gate lets it pass.

Invariant: nothing is trained again for it. And a last checkpoint that still does not pass ends the run with one error:
training again as before would come to the same model, for ever.
"""

from functools import partial

from storage.checkpoints.checkpoints import verify_checkpoint
from storage.errors import CheckpointUnusableError, ConflictError, QualityGateError, RunBusyError
from storage.runs.run_state import CheckpointRecord, RunState
from storage.runs.transitions import promote_rejected
from tasks.configuration.run import RunConfig
from tasks.console.announce import announce
from tasks.promotion.changes import find_changes
from tasks.promotion.gate import describe_end, find_rejection, is_last
from tasks.promotion.promotion import clear_strays
from tasks.run_paths import RunPaths
from tasks.verification.quarantine import take_out_of_use
from tasks.verification.verdicts import VerdictMaker


def gate_again(config: RunConfig, run_paths: RunPaths, state: RunState) -> RunState:
    """Promote the rejected checkpoint that the last segment left, if it passes now; where the run stands then.

    Raises `QualityGateError` if it is the last one and does not pass, `RunBusyError` if another process took the run
    up.
    """
    point = state.rejected_point
    if point is None:
        return state
    rejection = find_rejection(point.validation, point.checkpoint.step, config.train, config.checkpoint.gate)
    if rejection is None:
        return _promote(config, run_paths, point.checkpoint)
    if is_last(point.validation, point.checkpoint.step, config.train):
        raise QualityGateError(describe_end(config.run, point, rejection))
    return state


def _promote(config: RunConfig, run_paths: RunPaths, checkpoint: CheckpointRecord) -> RunState:
    """It was validated before it was rejected: what may have changed since are its bytes."""
    try:
        look = partial(verify_checkpoint, run_paths.store, checkpoint.path, checkpoint.digest)
        found = VerdictMaker(config.retry).check(run_paths, checkpoint.path, look)
    except CheckpointUnusableError as unusable:
        return take_out_of_use(run_paths, checkpoint.step, checkpoint.path, unusable, fence=None)
    changes = find_changes(run_paths.store, run_paths.manifest.load_head().state, found.index, config.train)
    change = promote_rejected(checkpoint.path, config.checkpoint.retention(config.divergence), changes)
    try:
        head = run_paths.manifest.commit(f"promoted step {checkpoint.step}, rejected before", change)
    except RunBusyError:
        raise
    except ConflictError as error:
        raise RunBusyError(f"Run {config.run!r} was just taken over by another process. {error}") from error
    announce(f"Checkpoint of step {checkpoint.step:,} passes the quality gate now and is promoted.")
    clear_strays(run_paths, head)
    return head.state
