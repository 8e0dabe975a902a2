"""What a run does when training diverged: it goes back and leaves out what led there, so often and no more.

Invariant: decided by the manifest alone, while the lease is free, so whichever process comes next answers the
divergence in the same way, and answers it once.
"""

from storage.errors import RunDivergedError
from storage.objects.addresses import run_address
from storage.runs.rollbacks.rolling_back import roll_back
from storage.runs.run_state import RollbackRecord, RunState, SegmentRecord
from tasks.configuration.run import RunConfig
from tasks.prefect_bridge.alerts import ROLLBACK, alert
from tasks.reporting.rollbacks import describe_rollback, describe_rollbacks
from tasks.run_paths import RunPaths


def answer_divergence(config: RunConfig, run_paths: RunPaths) -> RunState:
    """Roll the run back if its last segment diverged and that was not answered yet; where it stands then.

    Raises `RunDivergedError` where no rollback is left, and the `ConflictError`s of `roll_back`.
    """
    state = run_paths.manifest.load_head().state
    segment, policy = state.unanswered_divergence, config.divergence
    if segment is None or segment.divergence is None:
        return state
    answers = [record for record in state.rollbacks if record.asked_by is None]  # what a person asked for is no attempt
    if len(answers) >= policy.max_rollbacks:
        raise RunDivergedError(_describe_divergences(config, segment, answers))
    change = roll_back(segment.fence, policy.rollback_steps, policy.learning_rate_factor, config.train.batch_size)
    state = run_paths.manifest.commit(f"rolled back, as step {segment.divergence.step} diverged", change).state
    record = state.rollbacks[-1]
    number = f"{len(answers) + 1} of at most {policy.max_rollbacks}"
    message = f"Training diverged. {record.cause} Rollback {number}: {describe_rollback(record)}"
    steps = {"diverged_step": record.diverged_step, "step": record.resume_step}
    alert(ROLLBACK, run_address(run_paths.store, config.run), message, run=config.run, **steps)
    return state


def _describe_divergences(config: RunConfig, segment: SegmentRecord, rollbacks: list[RollbackRecord]) -> str:
    """The whole of it, for the person who has to decide now."""
    lines = [f"Run {config.run!r} diverged in segment {segment.fence}: {segment.cause}"]
    if rollbacks:
        lines.append("divergence.max_rollbacks allows no rollback beyond those that were made:")
        lines += [f"  {line}" for line in describe_rollbacks(rollbacks)]
    else:
        lines.append("No rollback is allowed: divergence.max_rollbacks = 0.")
    lines.append(
        "The run stays at its last promoted checkpoint; nothing is lost. To go on with one more rollback: "
        f"--set divergence.max_rollbacks={len(rollbacks) + 1}. With divergence.learning_rate_factor=0.5 beside it the "
        "steps from there on are half as large; a larger divergence.rollback_steps goes further back."
    )
    lines.append(_CAUSES["spike" if segment.divergence and segment.divergence.kind == "spike" else "other"])
    return "\n".join(lines)


_CAUSES = {
    "spike": "If that is how this loss behaves, and no divergence: give a larger divergence.spike_sigmas, or "
    "divergence.spikes=false.",
    "other": "If it comes back wherever the run goes: look for bad samples, or start a new run with a lower "
    "train.learning_rate or train.clip_norm, or with bf16 instead of fp16.",
}
