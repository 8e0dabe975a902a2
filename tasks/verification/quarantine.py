"""What follows from a verdict: the next older checkpoint, and never the beginning of the run by itself."""

from functools import partial

from storage.checkpoints.checkpoints import verify_checkpoint
from storage.errors import CheckpointUnusableError, NoCheckpointError
from storage.runs.rollbacks.quarantine import has_lost_all, quarantine
from storage.runs.run_state import RunState
from tasks.prefect_bridge.alerts import FALLBACK, PASSED_OVER, alert
from tasks.run_paths import RunPaths
from tasks.verification.verdicts import VerdictMaker


def take_out_of_use(
    run_paths: RunPaths, step: int, path: str, unusable: CheckpointUnusableError, fence: int | None
) -> RunState:
    """Take a checkpoint out of use after a verdict, with its reason, and log where the run goes on instead."""
    verdict, reason = unusable.verdict, str(unusable)
    did = "quarantined" if verdict == "damaged" else "passed over"
    state = run_paths.manifest.commit(f"{did} step {step}", quarantine(step, path, reason, fence, verdict)).state
    what = "is damaged and quarantined" if verdict == "damaged" else "cannot be read and is passed over; its files stay"
    message = f"Checkpoint of step {step:,} {what}: {reason.removesuffix('.')}. {_describe_resume_point(state)}"
    fields = {"step": step, "resume_step": state.promoted.step if state.promoted else 0}
    name = FALLBACK if verdict == "damaged" else PASSED_OVER
    alert(name, f"{run_paths.store.address}/{path}", message, run=run_paths.manifest.run, **fields)
    return state


def _describe_resume_point(state: RunState) -> str:
    if has_lost_all(state):
        return "No checkpoint is left, and the run does not begin anew by itself."
    where = f"step {state.promoted.step:,}" if state.promoted else "step 0, as none was promoted before"
    return (
        f"The resume point is {where}. Unless a newer one is promoted first, the steps after it are trained again, "
        "with the same result."
    )


def fall_back_to_valid(run_paths: RunPaths, verdicts: VerdictMaker) -> RunState:
    """Hash the resume point; while it is damaged or cannot be read, take the next older one. See `verdicts.py`."""
    state = run_paths.manifest.load_head().state
    while state.promoted is not None:
        point = state.promoted
        try:
            verdicts.check(run_paths, point.path, partial(verify_checkpoint, run_paths.store, point.path, point.digest))
        except CheckpointUnusableError as unusable:
            state = take_out_of_use(run_paths, point.step, point.path, unusable, fence=None)
        else:
            break
    return state


def require_checkpoint(state: RunState) -> None:
    """Raise `NoCheckpointError` where a run that had checkpoints would begin at step 0 for want of one."""
    if not has_lost_all(state):
        return
    reasons = " ".join(f"Step {record.step:,}: {record.reason}" for record in state.quarantined if record.digest)
    raise NoCheckpointError(
        f"Run {state.run!r} had checkpoints, and none of them can be used now. It does not begin anew at step 0 by "
        f"itself. {reasons} All files are kept, and each start looks at them again: bring the disk, the mount or the "
        "bucket back, or restore the files from a backup, then run again. To give them up and train from step 0: "
        "`holdfast recover RUN --from-start`."
    )
