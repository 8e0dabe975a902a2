"""Task `promote`: validate one checkpoint and make it the run's resume point.

Invariant: the commit depends on the store alone. Prefect hears of it as events from a thread, so a server that does not
answer delays no promotion.
"""

from storage.runs.run_state import CheckpointRecord, Holder
from tasks.configuration import RunConfig
from tasks.pages.words import size
from tasks.places import RunPlaces
from tasks.running.promotion import promote_checkpoint
from tasks.step import rename_step, step


@step("promote", "promote {path}")
def promote(
    config: RunConfig, places: RunPlaces, path: str, digest: str | None = None, holder: Holder | None = None
) -> tuple[CheckpointRecord | None, str]:
    """As `tasks.running.promotion.promote_checkpoint`."""
    record = promote_checkpoint(config, places, path, digest, holder)
    if record is None:
        return None, "The checkpoint is sound, but it does not pass the quality gate. It is not promoted."
    rename_step(f"promote step {record.step:,}")
    return record, f"Step {record.step:,} is the resume point; {size(record.num_bytes)} were hashed and validated."
