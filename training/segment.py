"""One rank's part in a segment, from the specification to the outcome record.

Invariant: training starts from the checkpoint that the segment was given, every byte of it as it was written, and from
no other; and every way out of here writes an outcome.
"""

import gc
from functools import partial

from storage.datasets import DatasetManifest
from storage.runs.code_version import own_version, tell_apart
from training.batches.ahead import AssemblingAhead
from training.batches.source import BatchSource, open_source
from training.building import build_segment
from training.checkpointing.restoring import read_patiently
from training.checkpointing.versions import describe_version_changes, read_versions, require_gpu_of_before
from training.data.waiting import StoreWait, load_dataset_patiently, wait_of
from training.going_on import join
from training.loop import train
from training.meeting import note_met
from training.metrics.curve import LossCurve
from training.metrics.reporter import Reporter
from training.metrics.training_state import TrainingState
from training.models.first_weights import take_first_weights
from training.models.precision import Precision, choose_precision
from training.models.source import microbatch_cut, source_of
from training.models.trial import Trial
from training.outcome import Ending, describe_end
from training.parts import Segment
from training.process_group import can_form_others, join_process_group
from training.spec import ResumePoint, SegmentSpec
from training.stopping import StopFlag, StopReason
from training.views.folder import ViewFolder
from training.views.group import Connections
from training.views.membership import Membership
from training.world import World


def run_segment(spec: SegmentSpec, world: World, flag: StopFlag, ahead: AssemblingAhead | None) -> Segment:
    """Train one segment and write its outcome; what it was done with. Raises what made it fail, after the outcome.

    A process that assembles `ahead` is this rank's from here on. Without one, on a machine whose other rank has it, or
    where none is wanted, input is the same.
    """
    store = spec.open_store()
    age_seconds = world.age_seconds
    reporter = Reporter(spec.progress_file, world, spec.train.batch_size, age_seconds)
    state = TrainingState(LossCurve(spec.train.log_every_steps, spec.divergence))
    ending = Ending(spec, world, store, reporter, state, age_seconds)
    with ending.failures_written():
        precision = choose_precision(spec.train, world)
        membership = _meet_the_others(spec, world, flag, precision)
        wait = wait_of(spec, flag, reporter.noted)
        dataset = load_dataset_patiently(spec, store, wait)
        cut, pin = microbatch_cut(spec.model, spec.train), precision.device.type == "cuda"
        source = open_source(spec, world, store, dataset, cut, pin, ahead, wait)
        segment = build_segment(spec, world, flag, store, dataset, precision, source, membership, reporter, state)
        if membership.is_joining:
            join(segment)
        else:
            _begin(segment, dataset, precision, wait)
        ending.first_step, ending.checkpointer = segment.first_step, segment.checkpointer
        gc.freeze()  # what lives by now lives on: looking for garbage in it would stop training time and again
        with reporter.phase("train"):
            reason = train(segment)
        source.close()
        if world.is_first:
            ending.write(*describe_end(reason, spec, state), is_abandoned=reason is StopReason.ABANDONED)
    return segment


def _meet_the_others(spec: SegmentSpec, world: World, flag: StopFlag, precision: Precision) -> Membership:
    """Meet all ranks, or, in place of one that died, nobody yet."""
    folder = ViewFolder(spec.scratch_folder)
    views = folder if folder.is_there and can_form_others(spec.train, precision.device) else None
    membership, connections = Membership(world, flag, views, world.life), Connections()
    if not membership.is_joining:
        join_process_group(spec.train, precision, world)
        note_met(spec.scratch_folder, world.slot)
        connections.find()
        membership.keep(connections)
    membership.watch()
    return membership


def _begin(segment: Segment, dataset: DatasetManifest, precision: Precision, wait: StoreWait) -> None:
    """Restore the checkpoint, or take the first weights, together with the other ranks."""
    spec, state, world = segment.spec, segment.state, segment.world
    is_new = spec.resume is None or _restore(segment, spec.resume)
    if spec.resume is None and spec.start is not None:
        take = partial(take_first_weights, segment.trainer.model, spec.open_store(), spec.start)
        wait.read("The run's first weights", take)
    if is_new and state.step < spec.train.num_steps:
        _try_out(segment, segment.source, dataset, precision)
    segment.first_step = segment.reporter.step = world.rank_status.step = state.step
    segment.flag.start_budget(spec.budget_seconds)
    segment.membership.begin(state.step)


def _try_out(segment: Segment, source: BatchSource, dataset: DatasetManifest, precision: Precision) -> None:
    """Ask of the model what its source asks, once with a set of libraries and devices, and with one Holdfast."""
    spec, trainer = segment.spec, segment.trainer
    trial = Trial(
        spec=spec,
        world=segment.world,
        dataset=dataset,
        precision=precision,
        objective=trainer.objective,
        microbatches=lambda: source.batch(segment.state.step).microbatches,
        note=segment.reporter.noted,
    )
    source_of(spec.model).try_out(trial)


def _restore(segment: Segment, point: ResumePoint) -> bool:
    """Start from this checkpoint; whether libraries, devices or Holdfast are others than those that made it.

    Where it cannot be read the segment ends; what follows is not for ranks to decide.
    """
    with segment.reporter.phase("restore"):
        share = read_patiently(lambda: segment.restorer.read(point))
        segment.restorer.take_over(share)
        segment.state.load_state_dict(share.state)
        segment.checkpointer.mark_restored(share.found.index.ledger)
    versions, made_by = share.found.index.versions, share.found.index.holdfast
    require_gpu_of_before(segment.spec.train, versions, segment.trainer.device)
    note = describe_version_changes(versions, read_versions(segment.trainer.device), tell_apart(made_by, own_version()))
    if note is not None:
        segment.reporter.noted(note)
    return note is not None
