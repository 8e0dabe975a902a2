"""One rank's part in a segment, from the specification to the outcome record.

Invariant: whoever can still speak writes an outcome: the first rank when training ends in good order, any rank that
fails. Only a segment of which nobody lived to speak has none.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from storage.datasets import DatasetManifest, load_dataset
from storage.errors import ConfigurationError, CorruptObjectError, IncompatibleRunError
from storage.objects.store import Store
from storage.runs.holders import process_age_seconds
from storage.runs.run_state import Divergence, Outcome
from storage.runs.segments import OutcomeRecord, write_outcome
from training.agreement import Agreement
from training.configuration import TrainConfig, ValidationConfig
from training.data.batches import BatchSource
from training.data.leaves import leaf_cut
from training.data.order import SampleOrder
from training.data.samples import SampleReader
from training.data.seeds import seed_initial_weights
from training.divergence import DivergedError
from training.loop import Segment, train
from training.model.classifier import Classifier
from training.model.compilation import compile_model
from training.model.objective import Objective
from training.model.precision import Precision, choose_precision
from training.saving.checkpointing import Checkpointer
from training.saving.restoring import Restorer, Share
from training.specification import ResumePoint, SegmentSpec
from training.stopping import StopFlag, StopReason
from training.trainer import Trainer
from training.versions import describe_version_changes, read_versions
from training.watching.curve import LossCurve
from training.watching.reporter import Reporter
from training.watching.training_state import TrainingState, headline_metric
from training.watching.validation import Validator
from training.world import World

# Ranks wait for each other while they load their libraries, and at the end while one of them writes the last save.
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
MAX_CAUSE_CHARACTERS = 2000


def run_segment(spec: SegmentSpec, world: World, flag: StopFlag) -> Segment:
    """Train one segment and write its outcome; what it was done with. Raises what made it fail, after the outcome."""
    store = spec.open_store()
    age_seconds = process_age_seconds()
    reporter = Reporter(spec.progress_file, world, spec.train.batch_size, age_seconds)
    state = TrainingState(LossCurve(world, spec.train.log_every_steps, spec.divergence))
    ending = _Ending(spec, world, store, reporter, state, age_seconds)
    with ending.failures_written():
        precision = choose_precision(spec.train, world)
        join_process_group(spec.train, precision)
        dataset = load_dataset(store, spec.dataset_digest, spec.dataset_sha256)
        segment, source = _build(spec, world, flag, store, dataset, precision, reporter, state)
        if spec.resume is not None:
            _restore(segment, [spec.resume, *spec.fallbacks])
        ending.first_step = reporter.step = state.step
        ending.checkpointer = segment.checkpointer
        flag.start_budget(spec.budget_seconds)
        with reporter.phase("train"):
            reason = train(segment, source.read_ahead(state.step, spec.train.steps, spec.train.prefetch_steps))
        if world.is_first:
            ending.write(*_describe_end(reason, spec), is_abandoned=reason is StopReason.ABANDONED)
    return segment


class _Ending:
    """Writes how the segment ended."""

    def __init__(
        self,
        spec: SegmentSpec,
        world: World,
        store: Store,
        reporter: Reporter,
        state: TrainingState,
        age_seconds: float,
    ) -> None:
        self.first_step = 0
        self.checkpointer: Checkpointer | None = None
        self._spec = spec
        self._world = world
        self._store = store
        self._reporter = reporter
        self._state = state
        self._began = time.monotonic() - age_seconds

    def write(
        self,
        outcome: Outcome,
        cause: str,
        is_final: bool = False,
        divergence: Divergence | None = None,
        is_abandoned: bool = False,
    ) -> None:
        """Put the outcome record, unless another rank has spoken already."""
        record = OutcomeRecord(
            outcome=outcome,
            cause=cause[:MAX_CAUSE_CHARACTERS],
            is_final=is_final,
            first_step=self.first_step,
            last_step=self._state.step,
            world_size=self._world.size,
            seconds=round(time.monotonic() - self._began, 3),
            phases=self._reporter.close(),
            saves=self.checkpointer.figures if self.checkpointer else None,
            divergence=divergence,
            is_abandoned=is_abandoned,
        )
        write_outcome(self._store, self._spec.run, self._spec.fence, record)

    @contextmanager
    def failures_written(self) -> Iterator[None]:
        """Write the outcome of a block that raises, and let it raise."""
        try:
            yield
        except DivergedError as error:
            self.write("diverged", str(error), divergence=error.evidence)
            raise
        except (ConfigurationError, IncompatibleRunError) as error:
            self.write("failed", str(error), is_final=True)
            raise
        except Exception as error:
            self.write("failed", f"rank {self._world.rank}: {type(error).__name__}: {error}")
            raise


def _restore(segment: Segment, points: list[ResumePoint]) -> None:
    """Start from the first of these checkpoints that is as it was written; from the first weights if none is."""
    with segment.reporter.phase("restore"):
        share = _read_newest(segment, points)
        if share is None:
            return
        segment.restorer.take_over(share)
        segment.state.load_state_dict(share.state)
        segment.checkpointer.mark_restored(share.found.index.ledger)
    note = describe_version_changes(share.found.index.versions, read_versions(segment.trainer.device))
    if note is not None:
        segment.reporter.noted(note)


def _read_newest(segment: Segment, points: list[ResumePoint]) -> Share | None:
    for point in points:
        try:
            return segment.restorer.read(point)
        except CorruptObjectError as error:
            segment.reporter.found_damaged(point.path, point.step, str(error))
    return None


def join_process_group(config: TrainConfig, precision: Precision) -> None:
    """Meet the other ranks: gradients on GPUs go through NCCL, all that is on the CPU through Gloo.

    NCCL refuses two ranks on one GPU, Gloo does not.
    """
    backend = "gloo"
    if precision.device.type == "cuda":
        backend = "cpu:gloo,cuda:gloo" if config.share_gpus else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)


def make_validator(
    spec: SegmentSpec,
    world: World,
    store: Store,
    dataset: DatasetManifest,
    precision: Precision,
    split: str,
    config: ValidationConfig,
) -> Validator:
    """A validator for `split`."""
    reader = SampleReader(store, dataset, split)
    cut = leaf_cut(spec.model)
    return Validator(reader, cut, dataset.target, make_objective(spec, dataset, precision), precision, config, world)


def make_objective(spec: SegmentSpec, dataset: DatasetManifest, precision: Precision) -> Objective:
    """The configured loss, on the device."""
    train_config = spec.train
    return Objective(
        dataset.target, train_config.class_weighting, train_config.label_smoothing, train_config.batch_size
    ).to(precision.device)


def make_model(spec: SegmentSpec, dataset: DatasetManifest, precision: Precision) -> Classifier:
    """The configured model with its first weights, on the device."""
    seed_initial_weights(spec.train.seed)
    model = Classifier(spec.model, dataset, spec.train.activation_checkpointing).to(precision.device)
    if spec.train.compile:
        compile_model(model, dataset, spec.train, precision)
    return model


def _build(
    spec: SegmentSpec,
    world: World,
    flag: StopFlag,
    store: Store,
    dataset: DatasetManifest,
    precision: Precision,
    reporter: Reporter,
    state: TrainingState,
) -> tuple[Segment, BatchSource]:
    config = spec.train
    reader = SampleReader(store, dataset, "train")
    order = SampleOrder(reader.num_rows, reader.group_rows, config.seed)
    pin = precision.device.type == "cuda"
    model = make_model(spec, dataset, precision)
    trainer = Trainer(model, make_objective(spec, dataset, precision), config, precision, world, spec.rollbacks)
    segment = Segment(
        spec=spec,
        world=world,
        state=state,
        trainer=trainer,
        validator=make_validator(spec, world, store, dataset, precision, "validation", spec.validation),
        checkpointer=Checkpointer(spec, world, store, trainer, state, reporter, reader.num_rows),
        restorer=Restorer(store, world, trainer),
        agreement=Agreement(world, flag),
        reporter=reporter,
        headline=headline_metric(dataset.target),
    )
    cut = leaf_cut(spec.model)
    return segment, BatchSource(reader, order, cut, config.batch_size, config.leaves, world, pin, spec.rollbacks)


def _describe_end(reason: StopReason, spec: SegmentSpec) -> tuple[Outcome, str]:
    if reason is StopReason.NONE:
        return "completed", ""
    if reason is StopReason.BUDGET:
        return "budget", f"time budget of {spec.budget_seconds:g} s"
    if reason is StopReason.ABANDONED:
        return "preempted", "the process that supervised the segment was killed; the ranks saved and left"
    return "preempted", "asked to stop by a signal"
