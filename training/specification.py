"""What the ranks are told: one JSON file, written by the segment task, read by every rank.

Invariant: all that a rank needs stands here or in the store; nothing is inherited from the flow's process.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from storage.addresses import open_store
from storage.store import Store
from training.configuration import CheckpointConfig, ConfigModel, ModelConfig, TrainConfig, ValidationConfig


class ResumePoint(ConfigModel):
    """The promoted checkpoint to start from."""

    path: str
    digest: str


class SegmentSpec(ConfigModel):
    """One segment, or one evaluation of the promoted checkpoint."""

    work: Literal["train", "evaluate"]
    run: str
    store: str
    cache: str | None = Field(None, description="Where a store in a bucket keeps copies of what it fetches.")
    scratch: str = Field(description="This segment's own folder on local disk.")
    fence: int
    dataset_digest: str
    resume: ResumePoint | None
    model: ModelConfig
    train: TrainConfig
    validation: ValidationConfig
    checkpoint: CheckpointConfig
    budget_seconds: float | None = None

    def open_store(self) -> Store:
        return open_store(self.store, Path(self.cache) if self.cache else None)

    @property
    def scratch_folder(self) -> Path:
        return Path(self.scratch)

    @property
    def progress_file(self) -> Path:
        """Where the first rank reports, for the process that launched it."""
        return self.scratch_folder / "progress.jsonl"
