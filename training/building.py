"""What a rank works with, made from the specification and the data set.

Invariant: everything made here is a function of the specification, the data set and the rank; a checkpoint is taken
over afterwards.
"""

from collections.abc import Callable
from functools import partial

from torch import nn

from storage.datasets import DatasetManifest
from storage.objects.store import Store
from storage.target_kinds import headline_metric
from training.agreement import Agreement
from training.batches.seeds import seed_initial_weights
from training.batches.source import BatchSource
from training.checkpointing.restoring import Restorer
from training.checkpointing.saves import Checkpointer
from training.checkpointing.state_hashes import require_equal_now
from training.data.reading import SampleReader
from training.data.waiting import StoreWait, wait_of
from training.determinism import pin_attention
from training.metrics.reporter import Reporter
from training.metrics.training_state import TrainingState
from training.metrics.validation import Validator
from training.models.compilation import compile_model
from training.models.objective import Objective
from training.models.precision import Precision
from training.models.source import microbatch_cut, source_of
from training.optim.checkpoint_budget import least_checkpoint_bytes, require_budget, require_room
from training.parts import Segment
from training.spec import SegmentSpec
from training.stopping import StopFlag
from training.targets.registry import kind_of
from training.trainer import Trainer
from training.validation_configuration import ValidationConfig
from training.views.membership import Membership
from training.world import World

# A segment validates many times, and the same rows each time.
KEPT_VALIDATION_BYTES = 1 << 30


def build_segment(
    spec: SegmentSpec,
    world: World,
    flag: StopFlag,
    store: Store,
    dataset: DatasetManifest,
    precision: Precision,
    source: BatchSource,
    membership: Membership,
    reporter: Reporter,
    state: TrainingState,
) -> Segment:
    """All that training needs, at step 0. Raises `ConfigurationError`."""
    trainer = make_trainer(spec, dataset, precision, world, reporter.noted if world.is_first else print)
    # A bit that changed in one rank's memory may look like a divergence, which would cost samples.
    trainer.require_equal = state.curve.before_divergence = partial(require_equal_now, trainer, world)
    least_bytes = least_checkpoint_bytes(trainer.model, trainer.optimization, bool(spec.frozen))
    require_budget(spec.checkpoint, least_bytes)
    if spec.resume is None and not membership.is_joining:  # later a full store is an alert, and training goes on
        require_room(store, least_bytes)
    return Segment(
        spec=spec,
        world=world,
        state=state,
        source=source,
        trainer=trainer,
        validator=make_validator(
            spec, world, store, dataset, precision, "validation", spec.validation, wait_of(spec, flag, reporter.noted)
        ),
        checkpointer=Checkpointer(
            spec, world, store, trainer, state, reporter, dataset.splits["train"].num_rows, membership.can_change
        ),
        restorer=Restorer(store, world, trainer),
        agreement=Agreement(world, flag, membership.newest, lambda: trainer.wrong_step),
        reporter=reporter,
        flag=flag,
        membership=membership,
        headline=headline_metric(dataset.target.kind, spec.validation.metric_for_best_model),
    )


def make_trainer(
    spec: SegmentSpec,
    dataset: DatasetManifest,
    precision: Precision,
    world: World,
    note: Callable[[str], object] = print,
) -> Trainer:
    """The trainer of the configured model; `note` and errors as in `make_model`."""
    model, objective = make_model(spec, dataset, precision, note), make_objective(spec, dataset, precision)
    return Trainer(source_of(spec.model), model, objective, spec.train, precision, world, spec.rollbacks)


def make_validator(
    spec: SegmentSpec,
    world: World,
    store: Store,
    dataset: DatasetManifest,
    precision: Precision,
    split: str,
    config: ValidationConfig,
    wait: StoreWait,
) -> Validator:
    """A validator for `split`."""
    kept_bytes = KEPT_VALIDATION_BYTES if split == "validation" else 0
    reader = SampleReader(
        store,
        dataset,
        split,
        spec.samples_folder,
        looks_ahead=True,
        kept_bytes=kept_bytes,
        wait=wait,
        waiting=world.rank_status.waiting_for_samples,
    )
    cut = microbatch_cut(spec.model, spec.train)
    return Validator(reader, cut, kind_of(dataset.target, config.metrics), precision, config, world)


def make_objective(spec: SegmentSpec, dataset: DatasetManifest, precision: Precision) -> Objective:
    """The configured loss, on the device."""
    config, num_rows = spec.train, dataset.splits["train"].num_rows
    objective = Objective(dataset.target, num_rows, config.class_weighting, config.label_smoothing, config.batch_size)
    return objective.to(precision.device)


def make_model(
    spec: SegmentSpec, dataset: DatasetManifest, precision: Precision, note: Callable[[str], object] = print
) -> nn.Module:
    """The configured model with its first weights, on the device; `note` is for what people should know of it.

    Raises `ConfigurationError` for sizes that the device does not compute.
    """
    source = source_of(spec.model)
    source.require_device(precision.device.type)
    pin_attention(precision.device.type)
    seed_initial_weights(spec.train.seed)
    model = source.build(dataset, kind_of(dataset.target).num_outputs).to(precision.device)
    source.set_activation_checkpointing(model, spec.train.activation_checkpointing)
    if spec.train.compile:
        compile_model(source, model, dataset, spec.train, precision, spec.scratch_folder / "compiled", note)
    return model
