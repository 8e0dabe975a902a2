"""State of a run in one generation of its manifest: the whole truth about the run, in one small JSON document.

Invariant: the resume point is `promoted`, and it is the newest entry of `kept`. Everything else explains how it came.
"""

from typing import Literal

from pydantic import Field

from storage.objects.history import HistoryPart
from storage.runs.code_version import CodeVersion
from storage.runs.metric_values import METRIC_WORDS, MetricValue, NotFinite
from storage.runs.run_records import (
    ByRows,
    ChangeRecord,
    OverrideValue,
    QuarantineRecord,
    Record,
    StartRecord,
    TestedRecord,
    ViewRecord,
    ViewTotals,
)

Outcome = Literal["completed", "budget", "preempted", "diverged", "failed", "lost"]


class Holder(Record):
    """The process that supervises a segment or an evaluation."""

    host: str = Field(description="For people; nothing is decided by it.")
    pid_scope: str = Field(description="Boot id and PID namespace, within which the process number is unique.")
    pid: int
    start_ticks: int = Field(description="Start of the process, in clock ticks since boot.")


class JobRecord(Record):
    """A job of a cluster, in which the ranks of a lease run."""

    kind: Literal["slurm", "kubernetes"]
    name: str = Field(description="By which the cluster's controller finds it.")
    nodes: list[str] | None = Field(
        None,
        description="Those that are left of a job that served the segment before. None: all that the job gets.",
    )


class Lease(Record):
    """Who may promote checkpoints. The generation that granted it is its `fence`."""

    fence: int
    holder: Holder
    world_size: int
    first_step: int
    taken_at: float = Field(description="Unix time, for people; nothing is decided by it.")
    planned_steps: int = Field(
        description="Steps of the whole run when the segment began: the learning rate follows it."
    )
    work: Literal["train", "evaluate"] = Field("train", description="What the ranks of the lease do.")
    scratch: str | None = Field(
        None,
        description="Folder of its ranks on the holder's local disk. None: as the configuration's scratch gives it.",
    )
    job: JobRecord | None = Field(
        None,
        description="None: its ranks are processes on the holder's machine.",
    )
    holdfast: CodeVersion | None = Field(None, description="Of the process that took it. None: not recorded.")


class NotFiniteMetrics(Record):
    """What a validation gave that is not a finite number, by the names of the metrics."""

    step: int = Field(description="Where the validation was made.")
    metrics: dict[str, NotFinite]


class CheckpointRecord(Record):
    """A promoted checkpoint. `digest` is the SHA-256 of its index, which holds the hashes of all its other files."""

    step: int
    path: str = Field(description="Key of its folder, relative to the store.")
    digest: str
    weights_sha256: str = Field(description="Over the model's tensors alone, in the order of their names.")
    num_bytes: int
    fence: int
    promoted_at: float
    metric: MetricValue | None = Field(
        None,
        description="The headline metric of the validation made at this step, higher is better; None if none was made.",
    )
    not_finite: NotFiniteMetrics | None = Field(
        None,
        description="Of the last validation up to this step; None if all that it gave is finite.",
    )


class ValidationFigures(Record):
    """What the last validation up to a checkpoint showed, by the headline metric; higher is better."""

    metric: str = Field(description="The headline metric: auc, macro_f1, or the one that the run has chosen.")
    value: MetricValue | None = Field(description="None: not defined, an AUC of samples of one class.")
    step: int = Field(description="Where it was made: at the checkpoint's step, or before.")
    num_without_better: int = Field(0, description="Validations since the best one, this one included.")
    best_value: float | None = Field(
        description="Of all validations so far, this one included; None if none gave a finite value."
    )
    best_step: int | None

    def describe(self) -> str:
        """'validation at step 400: macro-F1 0.8512, best so far'."""
        name = METRIC_WORDS.get(self.metric, self.metric)
        if self.value is None:
            return f"validation at step {self.step:,}: {name} not defined, as all samples are of one class"
        found = f"validation at step {self.step:,}: {name} {float(self.value):.4f}"
        if self.best_step == self.step:
            return f"{found}, best so far"
        if self.best_value is None or self.best_step is None:
            return found
        return f"{found}, best {self.best_value:.4f} at step {self.best_step:,}"


class RejectedRecord(Record):
    """A checkpoint that is sound but did not pass the quality gate: it is kept, and never the resume point meanwhile.

    The files of the newest one stay, since another gate may let it pass.
    """

    checkpoint: CheckpointRecord
    validation: ValidationFigures
    reason: str
    rejected_at: float
    is_discarded: bool = Field(False, description="Its files are deleted, or about to be.")


class SaveFigures(Record):
    """What a segment's saves cost, as the ranks measured it; sums over the completed ones."""

    count: int
    stall_seconds: float = Field(description="Training was paused: the copy of the state, and waiting for it.")
    durable_seconds: float = Field(description="From the beginning of the copy to the index in the store.")
    num_bytes: int = Field(description="Size of the last one.")


class Throughput(Record):
    """How fast the steps of a segment were made, over the time that it trained."""

    samples_per_second: float
    tokens_per_second: float = Field(description="Real ones, without padding.")
    input_wait_fraction: float = Field(description="Share of the time for which the first rank waited for samples.")


class Divergence(Record):
    """The evidence that training went wrong. A spike has all of its fields, other kinds those that they know."""

    kind: Literal["loss", "gradient", "loss_scale", "spike"] = Field(
        description="loss, gradient: not finite. loss_scale: fp16 overflowed whatever the scale. spike: too high."
    )
    step: int = Field(description="The step that showed it, counted from 1: so many steps were made with it.")
    value: float | None = Field(None, description="Loss, or scale, at that step; None where it is no finite number.")
    median: float | None = Field(None, description="Of the losses of the window before.")
    sigma: float | None = Field(None, description="Their robust standard deviation.")
    threshold: float | None = Field(None, description="The loss that was exceeded step after step.")


class RollbackRecord(Record):
    """Back to the beginning of `resume_step`, and on from there with other samples: divergence's answer, or asked for.

    The run's order of samples is left out from `first_position` to `end_position`: what the steps from `resume_step` to
    the diverged one took. What holds when there are several stands in `runs/rollbacks/positions.py`.
    """

    fence: int = Field(description="Of the segment that diverged, or of the last one when a user asked.")
    diverged_step: int = Field(description="The step that showed it, counted from 1; or the last one left behind.")
    resume_step: int = Field(description="Steps that stay; the first one after them takes the samples at the end.")
    first_position: int
    end_position: int
    learning_rate_factor: float = Field(
        description="What the schedule is multiplied with from here on, earlier rollbacks included."
    )
    cause: str
    rolled_back_at: float = Field(description="Unix time, for people; nothing is decided by it.")
    asked_by: str | None = Field(None, description="Whose request it was; None: divergence's answer.")

    @property
    def num_skipped(self) -> int:
        """Samples of the order that are left out."""
        return self.end_position - self.first_position


class SegmentRecord(Record):
    """A segment that ended. Steps after the checkpoint that it left behind are `steps_lost`."""

    fence: int
    outcome: Outcome
    cause: str = Field(description="Why, in words: 'SIGTERM', 'budget of 60 s', the error; empty after the last step.")
    first_step: int
    last_step: int
    world_size: int
    started_at: float
    seconds: float
    steps_lost: int
    is_final: bool = Field(
        False, description="The cause has to be corrected first: trying again would fail in the same way."
    )
    phases: dict[str, float] = Field(description="Seconds per phase: start, restore, train, validate, save.")
    saves: SaveFigures | None = Field(None, description="None if no outcome was recorded.")
    throughput: Throughput | None = Field(None, description="None if no step was made, or no outcome recorded.")
    divergence: Divergence | None = Field(None, description="Of a segment that diverged.")
    planned_steps: int = Field(description="As in its lease.")
    is_abandoned: bool = Field(
        False,
        description="No stop was requested: its supervisor or its launcher was killed, and the ranks saved and left.",
    )
    patience: int | None = Field(
        None,
        description="Of one that completed the run early: after so many validations that were no better.",
    )
    views: list[ViewRecord] = Field(
        [],
        description="When ranks died or joined and the others trained on, oldest first; of many the first and the "
        "last.",
    )
    view_totals: ViewTotals | None = Field(None, description="None: the ranks stayed those that began.")
    holdfast: CodeVersion | None = Field(None, description="As in its lease.")

    @property
    def ended_well(self) -> bool:
        """Whether it stopped when it was to stop, and saved."""
        return self.outcome in ("completed", "budget", "preempted")

    @property
    def steps_lost_is_least(self) -> bool:
        """Whether `last_step` is only what was last reported: no rank lived to say how many steps it had made.

        Ranks that fail say how long each phase took; who speaks for ranks that hung, or never began, does not.
        """
        is_told_by_others = self.outcome == "failed" and not self.phases and not self.is_final
        return self.last_step < self.planned_steps and (self.outcome == "lost" or is_told_by_others)


class RunState(Record):
    """One generation's content."""

    run: str
    created_at: float
    config: dict[str, object] = Field(description="The configuration the run was last continued with.")
    overrides: dict[str, OverrideValue] = Field({}, description="By dotted field of `config`, which has these values.")
    by_rows: ByRows | None = Field(None, description="None: nothing followed from the number of rows.")
    start: StartRecord | None = Field(None, description="None: the first weights are random ones.")
    dataset_digest: str
    dataset_sha256: str = Field(description="SHA-256 of the data set's dataset.json: the run reads no other one.")
    steps_total: int
    lease: Lease | None = None
    promoted: CheckpointRecord | None = None
    kept: list[CheckpointRecord] = Field([], description="Newest first: the resume point, its fallback, and others.")
    quarantined: list[QuarantineRecord] = Field([], description="Oldest first; damaged, passed over, or given up.")
    rejected: list[RejectedRecord] = Field(
        [],
        description="Later than the resume point: the newest one, behind the one whose files it made superfluous.",
    )
    earlier_segments: HistoryPart | None = Field(
        None,
        description="Newest part of the history with the segments that a generation leaves out.",
    )
    segments: list[SegmentRecord] = Field([], description="Oldest first; in memory all, also those in parts.")
    rollbacks: list[RollbackRecord] = Field([], description="Oldest first; also those that a later one superseded.")
    changes: list[ChangeRecord] = Field(
        [],
        description="Those between step 0 and the resume point that weaken the promise of one model, oldest first.",
    )
    metrics: dict[str, MetricValue] | None = Field(
        None, description="Of the last checkpoint, on the test split, once the run is complete."
    )
    metrics_step: int | None = Field(None, description="Step of the checkpoint the metrics belong to.")
    best_tested: TestedRecord | None = Field(
        None,
        description="Of the best checkpoint, where that is not the last one.",
    )

    @property
    def headline(self) -> TestedRecord | None:
        """What a person is shown of the test: of the best checkpoint, which an export takes, or else of the last."""
        if self.best_tested is not None and any(kept.path == self.best_tested.path for kept in self.kept):
            return self.best_tested
        if self.metrics is None or self.metrics_step is None:
            return None
        path = next((kept.path for kept in self.kept if kept.step == self.metrics_step), "")
        return TestedRecord(step=self.metrics_step, path=path, metrics=self.metrics)

    def find_segment(self, fence: int) -> Lease | SegmentRecord | None:
        """The segment with this fence: the one under way, or one that ended."""
        if self.lease is not None and self.lease.fence == fence:
            return self.lease
        return next((segment for segment in self.segments if segment.fence == fence), None)

    @property
    def steps_lost(self) -> int:
        """Steps that had, or have, to be trained again: lost with their segment, or later with a damaged checkpoint.

        What a rollback left out is not among them, but the steps before it that no kept checkpoint had.
        """
        resume_step = self.promoted.step if self.promoted else 0
        begun_at = [segment.first_step for segment in self.segments[1:]]
        begun_at.append(self.lease.first_step if self.lease else resume_step)
        stayed = {record.fence: record.resume_step for record in self.rollbacks}
        lost = 0
        for segment, next_step in zip(self.segments, begun_at, strict=False):  # a run without a segment lost nothing
            if segment.fence in stayed:
                lost += max(0, stayed[segment.fence] - next_step)
            else:
                lost += segment.steps_lost + max(0, segment.last_step - segment.steps_lost - next_step)
        return lost

    @property
    def steps_lost_is_least(self) -> bool:
        """Whether `steps_lost` may be more: those of a segment that was killed are counted up to its last report."""
        stayed = {record.fence for record in self.rollbacks}
        return any(segment.steps_lost_is_least and segment.fence not in stayed for segment in self.segments)

    @property
    def unanswered_divergence(self) -> SegmentRecord | None:
        """The last segment, if it diverged with evidence and the run was not rolled back for it yet."""
        last = self.segments[-1] if self.segments else None
        if last is None or last.divergence is None or any(last.fence == record.fence for record in self.rollbacks):
            return None
        return last

    @property
    def rejected_point(self) -> RejectedRecord | None:
        """The newest rejected checkpoint, if the last segment left it: under another gate the run can go on from it."""
        newest = self.rejected[-1] if self.rejected else None
        if newest is None or newest.is_discarded or not self.segments:
            return None
        return newest if newest.checkpoint.fence == self.segments[-1].fence else None

    @property
    def ended_early(self) -> bool:
        """Whether the last segment completed the run before its last step. With another `train.patience` it goes on."""
        last = self.segments[-1] if self.segments else None
        train = self.config.get("train")
        patience = train.get("patience") if isinstance(train, dict) else None
        return last is not None and last.patience is not None and last.patience == patience

    @property
    def end_step(self) -> int:
        """The step at which training ends: the last of all, or the one at which the run ended early."""
        return self.segments[-1].last_step if self.ended_early else self.steps_total

    @property
    def is_rejected(self) -> bool:
        """Whether training came to its end and the quality gate did not let the last checkpoint pass."""
        return self.rejected_point is not None and self.rejected_point.checkpoint.step == self.end_step

    @property
    def is_trained(self) -> bool:
        """Whether the resume point is the end of training, validated and saved."""
        last = self.segments[-1] if self.segments else None
        at_end = self.promoted is not None and self.promoted.step == self.end_step
        return at_end and last is not None and last.outcome == "completed"

    @property
    def is_complete(self) -> bool:
        """Whether it was trained and tested."""
        return self.is_trained and self.metrics is not None and self.metrics_step == self.end_step
