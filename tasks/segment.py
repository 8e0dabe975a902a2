"""Running one segment: take the lease, launch the ranks, promote their checkpoints as they complete, record the end.

Invariant: what the ranks did is learnt from their outcome record and their checkpoints, never from an exit code; and a
checkpoint is promoted while its segment runs, so the resume point is never older than one cadence.
"""

from typing import Literal

from storage.checkpoints.strays import delete_strays
from storage.errors import ConfigurationError, CorruptObjectError, SegmentFailedError, StoreError
from storage.objects.addresses import run_address
from storage.runs.holders import this_process
from storage.runs.run_state import RunState, SegmentRecord
from storage.runs.transitions import take_lease
from tasks.configuration import RunConfig
from tasks.places import RunPlaces, open_places
from tasks.promote import promote
from tasks.reports.set_aside import describe_set_aside, describe_setback
from tasks.running.following import ReportFollower
from tasks.running.hang import HangWatch
from tasks.running.heartbeat import Heartbeat
from tasks.running.promotion import set_aside_damaged, set_aside_resume_point
from tasks.running.ranks import POLL_SECONDS, Ranks
from tasks.running.settle import settle_segment
from tasks.running.signals import deferred_stop_signals
from tasks.step import rename_step, step
from tasks.telling.alerts import SAVE_FAILED, alert
from tasks.telling.announce import announce, warn
from tasks.telling.display import SegmentDisplay
from training.specification import ResumePoint, SegmentSpec
from training.watching.reporter import CheckpointReport


@step("segment")
def train_segment(config: RunConfig) -> tuple[SegmentRecord, str]:
    """Train until the run is complete, the time budget is spent or somebody asks to stop; how it ended."""
    places = open_places(config)
    state = places.manifest.commit("segment began", take_lease(this_process(), config.train.ranks)).state
    assert state.lease is not None
    lease, number = state.lease, len(state.segments) + 1
    rename_step(f"segment {number}: from step {lease.first_step:,}")
    folder = places.segment_scratch(lease.fence)
    folder.mkdir(parents=True, exist_ok=True)
    spec = make_specification("train", config, places, state, lease.fence)
    path = folder / "segment.json"
    path.write_text(spec.model_dump_json(), encoding="utf-8")
    ranks = Ranks(path, folder / "ranks.log", config.train, config.segment.grace_seconds)
    _warn_of_setback(state)
    announce(_describe_start(state, config))
    with deferred_stop_signals(ranks.stop), Heartbeat(places, lease.fence, lease.first_step) as heartbeat:
        delete_strays(places.store, places.manifest.load_head())
        with ranks, SegmentDisplay(config, lease.first_step) as display:
            _supervise(config, places, spec, ranks, display, heartbeat)
        record = settle_segment(config, places, lease, promote)
        announce(_describe_end(record))
        rename_step(f"segment {number}: steps {record.first_step:,} to {record.last_step:,}")
    return record, _describe_end(record)


def require_progress(config: RunConfig, record: SegmentRecord, state: RunState) -> None:
    """Raise unless the run may simply go on: `SegmentFailedError` where trying again may help, others where not.

    A segment that died but left a newer resume point than it began with has got on: machines die every day in a run of
    days, and retries are counted for those that do not get on. One that diverged was rolled back, or `recover` raised.
    """
    what = f"Segment {record.fence} of run {config.run!r}"
    if record.is_final:
        raise ConfigurationError(f"{what} could not run: {record.cause}")
    got_on = state.promoted is not None and state.promoted.step > record.first_step
    if record.outcome in ("failed", "lost") and not got_on:
        raise SegmentFailedError(f"{what} ended as {record.outcome}: {record.cause}")
    if record.outcome == "completed" and not state.is_trained:
        reasons = [damaged.reason for damaged in state.set_aside if damaged.step == record.last_step]
        raise SegmentFailedError(f"{what} reached the last step, but its checkpoint was refused: {' '.join(reasons)}")
    if record.outcome == "budget" and record.last_step == record.first_step:
        raise ConfigurationError(
            f"{what} used up its time budget, segment.seconds = {config.segment.seconds:g}, before its first step. "
            "Set a larger segment.seconds."
        )


def make_specification(
    work: Literal["train", "evaluate"], config: RunConfig, places: RunPlaces, state: RunState, fence: int
) -> SegmentSpec:
    """What the ranks are told: the configuration, and the promoted checkpoint to start from."""
    points = [ResumePoint(path=record.path, digest=record.digest, step=record.step) for record in state.kept]
    return SegmentSpec(
        work=work,
        run=config.run,
        store=places.store.address,
        cache=str(places.cache) if places.cache else None,
        scratch=str(places.segment_scratch(fence)),
        fence=fence,
        dataset_digest=state.dataset_digest,
        dataset_sha256=state.dataset_sha256,
        resume=points[0] if points else None,
        fallbacks=points[1:],
        model=config.model,
        train=config.train,
        validation=config.validation,
        checkpoint=config.checkpoint,
        divergence=config.divergence,
        rollbacks=state.rollbacks,
        budget_seconds=config.segment.seconds if work == "train" else None,
    )


def _supervise(
    config: RunConfig,
    places: RunPlaces,
    spec: SegmentSpec,
    ranks: Ranks,
    display: SegmentDisplay,
    heartbeat: Heartbeat,
) -> None:
    reports, watch = ReportFollower(spec.progress_file), HangWatch(config.segment.hang_seconds)
    while ranks.is_running(POLL_SECONDS):
        new = reports.read()
        if not new and watch.end_if_hung(places, spec, ranks):
            return
        for report in new:
            watch.heard(report.step)
            display.show(report)
            heartbeat.step = report.step
            if report.note is not None:
                warn(report.note)
            if report.alarm is not None:
                alert(SAVE_FAILED, run_address(places.store, config.run), report.alarm)
            if report.checkpoint is not None:
                _take_up(config, places, report.checkpoint, spec.fence, display)


def _take_up(
    config: RunConfig, places: RunPlaces, found: CheckpointReport, fence: int, display: SegmentDisplay
) -> None:
    """Promote what the ranks have completed; set aside what they could not start from."""
    if found.damage is not None:
        set_aside_resume_point(places, found.step, found.path, found.damage, fence)
        return
    try:
        if promote(config, places, found.path) is not None:
            display.promoted(found.step)
    except CorruptObjectError as error:
        set_aside_damaged(places, found.step, found.path, str(error), fence)
    except StoreError as error:
        warn(
            f"The checkpoint of step {found.step} could not be promoted; the next one, or the end, tries again: {error}"
        )


def _describe_end(record: SegmentRecord) -> str:
    lost = f", {record.steps_lost:,} steps lost" if record.steps_lost else ""
    if record.outcome == "completed":
        return f"Trained to the last step, {record.last_step:,}."
    if record.outcome == "diverged":
        return f"Segment ended: diverged at step {record.last_step:,}."  # the rest is said with the rollback
    cause = f" ({record.cause})" if record.cause else ""
    resume_step = record.last_step - record.steps_lost
    return f"Segment ended: {record.outcome}{cause}. The run goes on from step {resume_step:,}{lost}."


def _warn_of_setback(state: RunState) -> None:
    """Say why training starts at an earlier step than the run had reached, whoever set the later checkpoints aside."""
    setback = describe_setback(state)
    if setback is not None:
        warn(" ".join([*describe_set_aside(state), setback]))


def _describe_start(state: RunState, config: RunConfig) -> str:
    point = state.promoted.step if state.promoted else 0
    ranks = "1 rank" if config.train.ranks == 1 else f"{config.train.ranks} ranks"
    return f"Training {config.run} from step {point:,} of {config.train.steps:,} on {ranks}."
