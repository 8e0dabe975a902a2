"""Rollbacks as the manifest has them, made by hand."""

from storage.runs.run_state import RollbackRecord


def rollback_to(
    resume_step: int, diverged_step: int | None = None, batch_size: int = 8, factor: float = 1.0, fence: int = 2
) -> RollbackRecord:
    """A run's first rollback: from `diverged_step`, or 5 steps later, to `resume_step`."""
    diverged_step = resume_step + 5 if diverged_step is None else diverged_step
    return RollbackRecord(
        fence=fence,
        diverged_step=diverged_step,
        resume_step=resume_step,
        first_position=resume_step * batch_size,
        end_position=diverged_step * batch_size,
        learning_rate_factor=factor,
        cause=f"The loss became nan at step {diverged_step}.",
        rolled_back_at=1.0,
    )
