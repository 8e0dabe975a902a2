"""Task `promote`: validate one checkpoint and make it the run's resume point.

Invariant: the commit depends on the store alone. Prefect hears of it as events from a thread, so a server that does not
answer delays no promotion.
"""

from storage.runs.run_state import CheckpointRecord, Holder
from tasks.configuration.run import RunConfig
from tasks.prefect_bridge.private.contexts import rename_step
from tasks.promotion.promotion import promote_checkpoint
from tasks.run_paths import RunPaths
from tasks.step import step
from tasks.text import size


@step("promote", "promote {path}")
def promote(
    config: RunConfig, run_paths: RunPaths, path: str, digest: str | None = None, holder: Holder | None = None
) -> tuple[CheckpointRecord | None, str]:
    """Promote a checkpoint, as `tasks.promotion.promotion.promote_checkpoint` does."""
    record = promote_checkpoint(config, run_paths, path, digest, holder)
    if record is None:
        return None, "The checkpoint is sound, but it does not pass the quality gate. It is not promoted."
    rename_step(f"promote step {record.step:,}")
    return record, f"Step {record.step:,} is the resume point; {size(record.num_bytes)} were hashed and validated."
