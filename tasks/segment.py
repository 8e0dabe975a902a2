"""Running one segment: take the lease, launch the ranks, promote their checkpoints as they complete, record the end.

Invariant: what the ranks did is learnt from their outcome record and their checkpoints, never from an exit code; and a
checkpoint is promoted while its segment runs, so the resume point is never older than one cadence.
"""

from collections.abc import Sequence
from functools import partial

from storage.errors import (
    BestNotReadError,
    CheckpointUnusableError,
    ConflictError,
    CorruptObjectError,
    FencedError,
    ObjectUnreadableError,
    StoreError,
)
from storage.objects.addresses import run_address
from storage.runs.holders import this_process
from storage.runs.run_state import CheckpointRecord, RunState, SegmentRecord, ValidationFigures
from storage.runs.segments import write_outcome
from tasks.cluster.job import Job
from tasks.cluster.launchers import release_job
from tasks.configuration.run import RunConfig
from tasks.console.announce import announce, warn
from tasks.console.audience import Audience
from tasks.console.display import SegmentDisplay
from tasks.monitoring.monitor import monitoring
from tasks.preemption.signals import StopRequest
from tasks.preemption.time_left import warn_of_short_notice
from tasks.preemption.watch import run_to_end_or_notice
from tasks.prefect_bridge.alerts import SAVE_FAILED, alert
from tasks.prefect_bridge.live_page import LivePicture
from tasks.prefect_bridge.private.contexts import rename_step
from tasks.prefect_bridge.segment_end import describe_segment_end
from tasks.prefect_bridge.stop_requests import StopRequests
from tasks.promote import promote
from tasks.promotion.promotion import clear_strays
from tasks.recovery.settle import settle_segment
from tasks.recovery.taking_over import begin_watch, require_own_watch, was_taken_up
from tasks.reporting.changes import describe_other_holdfast
from tasks.reporting.quarantined import describe_quarantined, describe_setback
from tasks.retrying import Retry
from tasks.run_paths import open_run_paths
from tasks.step import step
from tasks.supervision.hang import HangWatch
from tasks.supervision.heartbeat import Heartbeat
from tasks.supervision.launch import hold_lease, launch_job, require_launchable
from tasks.supervision.live_log import LiveLog
from tasks.supervision.watch import supervise
from tasks.text import count_of
from tasks.tracking.recorder import tracking
from tasks.verification.quarantine import take_out_of_use
from tasks.verification.verdicts import VerdictMaker
from training.metrics.reporter import CheckpointReport, Report


@step("segment")
def train_segment(config: RunConfig) -> tuple[SegmentRecord, str]:
    """Train until the run is complete, the time budget is spent or a stop is requested; how it ended."""
    record = run_to_end_or_notice(config.notices, warn, lambda request: _Segment(config, request).run())
    return record, describe_segment_end(record)


class _Segment:
    """One segment under supervision. The store may go away for a while at any time."""

    def __init__(self, config: RunConfig, request: StopRequest) -> None:
        self._config = config
        self._run_paths = open_run_paths(config)
        self._request = request
        self._retry = Retry(config.retry, lambda: request.is_made)
        self._verdicts = VerdictMaker(config.retry, lambda: request.is_made)
        self._differed: dict[str, CheckpointReport] = {}
        self._validation: ValidationFigures | None = None  # the last one that was shown

    def run(self) -> SegmentRecord:
        config, run_paths = self._config, self._run_paths
        self._retry.call("Asking the cluster", lambda: require_launchable(config))
        head = self._retry.call("Taking the lease", lambda: hold_lease(config, run_paths, "train"))
        lease = head.state.lease
        assert lease is not None
        rename_step(f"segment {lease.fence}: from step {lease.first_step:,}")
        begin_watch(run_paths, lease)
        job = launch_job(config, run_paths, head.state)
        _warn_of_setback(head.state)
        warn_of_short_notice(config.notices, warn, head.state)
        announce(_describe_start(head.state, config))
        if (other := describe_other_holdfast(head.state)) is not None:
            warn(other)
        stop_requests, picture = StopRequests(run_paths, lease.fence, self._request), LivePicture(config, run_paths)
        beating, monitored = (
            Heartbeat(run_paths, lease),
            monitoring(config, run_paths, head.state),
        )
        tracked = tracking(
            config.tracking, run_paths.store, config.run, warn, has_machine=config.cluster.kind == "local"
        )
        with beating as heartbeat, stop_requests, picture, monitored as monitor, tracked as tracker:
            clear_strays(run_paths, head)
            with job, LiveLog(run_paths, lease), SegmentDisplay(config, lease.first_step) as display:
                self._supervise(job, head.state, [display, picture, monitor, tracker], heartbeat)
            record = self._retry.call(
                f"Settling segment {lease.fence}",
                lambda: settle_segment(config, run_paths, lease, promote, self._verdicts),
            )
            if record.is_final or self._request.is_made:
                release_job(lease.job, run_paths.store, config.run, lease.fence)
            rename_step(f"segment {lease.fence}: steps {record.first_step:,} to {record.last_step:,}")
        return record

    def _supervise(self, job: Job, begun_with: RunState, audience: Sequence[Audience], heartbeat: Heartbeat) -> None:
        lease, limits = begun_with.lease, self._config.segment
        assert lease is not None
        watch = HangWatch(limits.hang_seconds, limits.lost_seconds, lease.first_step)

        def take(report: Report) -> None:
            for listener in audience:
                listener.show(report)
            heartbeat.hear(report)
            if report.validation is not None and report.validation != self._validation:
                self._validation = report.validation
                words = report.validation.describe()
                announce(f"{words[0].upper()}{words[1:]}.")
            if report.note is not None:
                warn(report.note)
            if report.alarm is not None:
                run = self._config.run
                alert(SAVE_FAILED, run_address(self._run_paths.store, run), report.alarm, run=run, step=report.step)
            if report.checkpoint is not None and not was_taken_up(begun_with, report.checkpoint):
                point = self._take_up(report.checkpoint, lease.fence, job)
                if point is not None:
                    for listener in audience:
                        listener.promoted(point)

        if supervise(job, watch, self._request, take):
            record, store = watch.describe_end(lease.world_size), self._run_paths.store
            write = partial(write_outcome, store, self._config.run, lease.fence, record)
            self._retry.call(f"Recording how segment {lease.fence} ended", write)

    def _take_up(self, found: CheckpointReport, fence: int, job: Job) -> CheckpointRecord | None:
        """Promote what the ranks have completed; the new resume point. The supervisor waits for nothing here.

        What differed from its hash is looked at a second time when a later one is complete, or the segment ends.
        """
        # First: the promotion of a later one deletes what is not promoted by then.
        for earlier in [report for path, report in self._differed.items() if self._verdicts.is_due(path)]:
            self._promote(self._differed.pop(earlier.path), fence, job)
        return self._promote(found, fence, job)

    def _promote(self, found: CheckpointReport, fence: int, job: Job) -> CheckpointRecord | None:
        read = partial(promote, self._config, self._run_paths, found.path, holder=this_process())
        try:
            return self._verdicts.look(found.path, read)
        except FencedError:
            raise
        except ConflictError:  # another process promoted it
            require_own_watch(self._run_paths, job, fence)
        except CheckpointUnusableError as unusable:
            require_own_watch(self._run_paths, job, fence)
            take_out_of_use(self._run_paths, found.step, found.path, unusable, fence)
        except BestNotReadError as best:
            return self._promote_without(best, found, fence, job)
        except (CorruptObjectError, StoreError) as error:
            if isinstance(error, CorruptObjectError):
                self._differed[found.path] = found
            if isinstance(error, ObjectUnreadableError):  # promoted and deleted by another supervisor by now?
                require_own_watch(self._run_paths, job, fence)
            warn(
                f"The checkpoint of step {found.step} could not be promoted. Training goes on; the next checkpoint, "
                f"or the end of the segment, tries again: {error}"
            )
        return None

    def _promote_without(
        self, best: BestNotReadError, found: CheckpointReport, fence: int, job: Job
    ) -> CheckpointRecord | None:
        """Promote `found` once there is a verdict on the best model's checkpoint, which that would delete."""
        require_own_watch(self._run_paths, job, fence)
        try:
            self._verdicts.weigh(best.path, best.error)
        except CheckpointUnusableError as unusable:
            take_out_of_use(self._run_paths, best.step, best.path, unusable, fence)
            return self._promote(found, fence, job)
        warn(
            f"The checkpoint of step {found.step} is not promoted yet. Training goes on; the next checkpoint, or the "
            f"end of the segment, tries again: {best}"
        )
        return None


def _warn_of_setback(state: RunState) -> None:
    """Warn why training starts at an earlier step than was reached, also if another process quarantined checkpoints."""
    setback = describe_setback(state)
    if setback is not None:
        warn(" ".join([*describe_quarantined(state), setback]))


def _describe_start(state: RunState, config: RunConfig) -> str:
    point = state.promoted.step if state.promoted else 0
    cluster, where = config.cluster, count_of(config.num_ranks, "rank")
    if cluster.kind != "local":
        fewest = "" if cluster.min_nodes in (None, cluster.nodes) else f"{cluster.min_nodes} to "
        where = f"{fewest}{count_of(cluster.nodes, 'node')} with {count_of(config.train.ranks, 'rank')} each"
    return f"Training {config.run} from step {point:,} of {config.train.num_steps:,} on {where}."
