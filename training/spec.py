"""The specification of a segment for its ranks: one JSON file, written by the segment task, read by every rank.

Invariant: all that a rank needs stands here or in the store; nothing is inherited from the flow's process.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from storage.objects.addresses import open_store
from storage.objects.store import Store
from storage.runs.run_records import FrozenFile
from storage.runs.run_state import RollbackRecord
from training.configuration import CheckpointConfig, ConfigModel, DivergenceConfig, TrainConfig
from training.model_configuration import ModelConfig
from training.validation_configuration import ValidationConfig


class ResumePoint(ConfigModel):
    """A promoted checkpoint to start from."""

    path: str
    digest: str
    step: int


class AdHocEvaluation(ConfigModel):
    """An evaluation that a person asked for: no lease is held, and nothing is written into the store."""

    split: str
    result_file: str = Field(description="On local disk, for the process that launched the ranks.")
    data: str | None = Field(None, description="Store of the data set, where it is not the run's.")


class StartPoint(ConfigModel):
    """The first weights of a run that begins with those of another: a folder in the store, and its start.json."""

    path: str
    digest: str
    frozen: list[FrozenFile] = Field([], description="With the weights that are not trained: no checkpoint has them.")


class SegmentSpec(ConfigModel):
    """Specification of one segment, or of one evaluation: of the promoted checkpoint, or as a person asked."""

    work: Literal["train", "evaluate"]
    run: str
    store: str
    cache: str | None = Field(None, description="Where a store in a bucket keeps copies of what it fetches.")
    scratch: str = Field(description="This segment's own folder on local disk.")
    fence: int
    dataset_digest: str
    dataset_sha256: str = Field(description="Of its dataset.json: the ranks read no other data set.")
    resume: ResumePoint | None
    start: StartPoint | None = Field(None, description="None: the first weights are random ones.")
    best: ResumePoint | None = Field(None, description="Of the run's own evaluation: evaluated too, if it is another.")
    model: ModelConfig
    train: TrainConfig
    validation: ValidationConfig
    checkpoint: CheckpointConfig
    divergence: DivergenceConfig = DivergenceConfig()
    rollbacks: list[RollbackRecord] = Field([], description="The run's rollbacks so far, which decide the samples.")
    budget_seconds: float | None = None
    store_seconds: float = Field(0.0, description="For which ranks wait while the store does not answer.")
    ad_hoc: AdHocEvaluation | None = Field(None, description="Of an evaluation that is not the run's own.")

    def open_store(self) -> Store:
        return open_store(self.store, Path(self.cache) if self.cache else None)

    @property
    def scratch_folder(self) -> Path:
        return Path(self.scratch)

    @property
    def frozen(self) -> list[FrozenFile]:
        """The files in which the weights stand that are not trained; none where each checkpoint has all weights."""
        return self.start.frozen if self.start is not None else []

    @property
    def samples_folder(self) -> Path:
        """Folder in which the ranks of this machine keep decoded samples for each other."""
        return self.scratch_folder / "samples"

    @property
    def progress_file(self) -> Path:
        """File in which the first rank reports, for the process that launched it."""
        return self.scratch_folder / "progress.jsonl"
