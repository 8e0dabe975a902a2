"""What a run's manifest says at one generation: the whole truth about the run, in one small JSON document.

Invariant: the resume point is `promoted`, and it is the newest entry of `kept`. Everything else explains how it came.
A field that came later is left out where it has its default: a generation must give the very bytes it was written as.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Outcome = Literal["completed", "budget", "preempted", "diverged", "failed", "lost"]


class Record(BaseModel):
    """Base of everything kept in the manifest: immutable and strict."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Holder(Record):
    """The process that supervises a segment."""

    host: str = Field(description="For people; nothing is decided by it.")
    place: str = Field(description="Boot id and PID namespace: where the process number means something.")
    pid: int
    start_ticks: int = Field(description="Start of the process, in clock ticks since boot.")


class Lease(Record):
    """Who may promote checkpoints. The generation that granted it is its `fence`."""

    fence: int
    holder: Holder
    world_size: int
    first_step: int
    taken_at: float = Field(description="Unix time, for people; nothing is decided by it.")


class CheckpointRecord(Record):
    """A promoted checkpoint. `digest` is the SHA-256 of its index, which holds the hashes of all its other files."""

    step: int
    path: str = Field(description="Key of its folder, relative to the store.")
    digest: str
    weights_sha256: str = Field(description="Over the model's tensors alone, in the order of their names.")
    num_bytes: int
    fence: int
    promoted_at: float
    metric: float | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="AUC or macro-F1 of the validation made at this step, higher is better; None if none was made.",
    )


class SetAsideRecord(Record):
    """A checkpoint that was found damaged, and why. Its files stay for whoever wants to look, until discarded."""

    step: int
    path: str
    reason: str
    set_aside_at: float
    is_discarded: bool = Field(
        False, exclude_if=lambda value: value is False, description="Its files are deleted, or about to be."
    )


class SaveFigures(Record):
    """What a segment's saves cost, as the ranks measured it; sums over the completed ones."""

    count: int
    stall_seconds: float = Field(description="Training stood still: the copy of the state, and waiting for it.")
    durable_seconds: float = Field(description="From the copy to the index in the store, beside training.")
    num_bytes: int = Field(description="Size of the last one.")


class SegmentRecord(Record):
    """A segment that ended. Steps after the checkpoint that it left behind are `steps_lost`."""

    fence: int
    outcome: Outcome
    cause: str = Field(description="Why, in words: 'SIGTERM', 'budget of 60 s', the error; empty when completed.")
    first_step: int
    last_step: int
    world_size: int
    started_at: float
    seconds: float
    steps_lost: int
    is_final: bool = Field(False, description="The cause is a mistake that trying again cannot mend.")
    phases: dict[str, float] = Field(description="Seconds per phase: start, restore, train, validate, save.")
    saves: SaveFigures | None = Field(
        None, exclude_if=lambda value: value is None, description="None if nobody lived to tell."
    )

    @property
    def ended_well(self) -> bool:
        """Whether it stopped when it was to stop, and saved."""
        return self.outcome in ("completed", "budget", "preempted")


class RunState(Record):
    """One generation's content."""

    run: str
    created_at: float
    config: dict[str, object] = Field(description="The configuration the run was last continued with.")
    dataset_digest: str
    steps_total: int
    lease: Lease | None = None
    promoted: CheckpointRecord | None = None
    kept: list[CheckpointRecord] = Field([], description="Newest first: the resume point, its fallback, and others.")
    set_aside: list[SetAsideRecord] = []
    segments: list[SegmentRecord] = Field([], description="Oldest first.")
    metrics: dict[str, float] | None = Field(None, description="On the test split, once the run is complete.")
    metrics_step: int | None = Field(None, description="Step of the checkpoint the metrics belong to.")

    @property
    def is_trained(self) -> bool:
        """Whether the resume point is the end of training, validated and saved."""
        last = self.segments[-1] if self.segments else None
        at_end = self.promoted is not None and self.promoted.step == self.steps_total
        return at_end and last is not None and last.outcome == "completed"

    @property
    def is_complete(self) -> bool:
        """Whether it was trained and tested."""
        return self.is_trained and self.metrics is not None and self.metrics_step == self.steps_total
