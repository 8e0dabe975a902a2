"""The final evaluation: the promoted checkpoint and the best one on the test split, by the same ranks that train.

Invariant: the metrics in the manifest belong to the checkpoint that is promoted when they are written, and to the best
one that is kept then; and the process that evaluates holds the run's lease, so no other does it at the same time.
"""

from functools import partial

from storage.checkpoints.checkpoints import verify_checkpoint
from storage.checkpoints.results import find_evaluation
from storage.errors import CheckpointUnusableError, SegmentFailedError
from storage.objects.addresses import run_address
from storage.runs.holders import this_process
from storage.runs.metric_values import MetricValue, describe_not_finite, find_not_finite
from storage.runs.retention import find_best
from storage.runs.run_records import TestedRecord
from storage.runs.run_state import CheckpointRecord, RunState
from storage.runs.transitions import record_metrics
from tasks.cluster.job import Job
from tasks.configuration.run import RunConfig
from tasks.console.announce import announce, warn
from tasks.console.terminal import console
from tasks.preemption.signals import StopRequest
from tasks.preemption.watch import run_to_end_or_notice
from tasks.prefect_bridge.alerts import NO_PROGRESS, alert
from tasks.prefect_bridge.stop_requests import StopRequests
from tasks.recovery.settle import settle_evaluation
from tasks.reporting.written import ReportLoading
from tasks.retrying import Retry
from tasks.run_paths import RunPaths, open_run_paths
from tasks.step import step
from tasks.supervision.hang import HangWatch
from tasks.supervision.heartbeat import Heartbeat
from tasks.supervision.launch import hold_lease, launch_job
from tasks.supervision.live_log import LiveLog
from tasks.supervision.watch import supervise
from tasks.text import score
from tasks.verification.quarantine import take_out_of_use
from tasks.verification.verdicts import VerdictMaker
from training.metrics.reporter import Report

LOG_LINES_SHOWN = 15


@step("evaluate")
def evaluate_run(config: RunConfig) -> tuple[dict[str, MetricValue], str]:
    """Score the promoted checkpoint and the best one on the test split, unless that was done; the best one's metrics.

    Raises `RunBusyError` if another process does it, `SegmentFailedError` if there is no result.
    """
    metrics = run_to_end_or_notice(config.notices, warn, lambda request: _evaluate_patiently(config, request))
    return metrics, "On the test split: " + ", ".join(f"{name} {score(value)}" for name, value in metrics.items()) + "."


def _evaluate_patiently(config: RunConfig, request: StopRequest) -> dict[str, MetricValue]:
    patience, run_paths = Retry(config.retry, lambda: request.is_made), open_run_paths(config)
    return patience.call("Evaluating", lambda: _evaluate(config, run_paths, request))


def _evaluate(config: RunConfig, run_paths: RunPaths, request: StopRequest) -> dict[str, MetricValue]:
    state = run_paths.manifest.load_head().state
    assert state.promoted is not None
    if state.lease is not None and state.lease.holder == this_process():
        settle_evaluation(config, run_paths, state.lease)  # an earlier attempt, after which the store did not answer
    state = _with_sound_best(run_paths, state, VerdictMaker(config.retry, lambda: request.is_made))
    if not _is_evaluated(run_paths, state):
        announce("Evaluating on the test split.")
        _run_ranks(config, run_paths, request)
    last, best = state.promoted, find_best(state)
    assert last is not None
    metrics = _find_metrics(run_paths, last)
    tested = None
    if best is not None and best != last:
        tested = TestedRecord(step=best.step, path=best.path, metrics=_find_metrics(run_paths, best))
    if state.metrics_step != last.step or state.best_tested != tested:
        run_paths.manifest.commit("evaluated", record_metrics(metrics, last.step, tested))
    return metrics if tested is None else tested.metrics


def _with_sound_best(run_paths: RunPaths, state: RunState, verdicts: VerdictMaker) -> RunState:
    """The state with a best checkpoint that can be evaluated; what cannot be is taken out of use."""
    while (best := find_best(state)) is not None and best != state.promoted:
        if find_evaluation(run_paths.store, best) is not None:
            break
        try:
            verdicts.check(run_paths, best.path, partial(verify_checkpoint, run_paths.store, best.path, best.digest))
            break
        except CheckpointUnusableError as unusable:
            state = take_out_of_use(run_paths, best.step, best.path, unusable, fence=None)
    return state


def _is_evaluated(run_paths: RunPaths, state: RunState) -> bool:
    best = find_best(state)
    return all(find_evaluation(run_paths.store, record) for record in (state.promoted, best or state.promoted))


def _find_metrics(run_paths: RunPaths, record: CheckpointRecord) -> dict[str, MetricValue]:
    evaluation = find_evaluation(run_paths.store, record)
    assert evaluation is not None, "required before"
    metrics: dict[str, MetricValue] = evaluation["metrics"]
    if not_finite := find_not_finite(metrics):
        found = describe_not_finite(not_finite)
        warn(f"The evaluation of step {record.step:,} on the test split gave values that are not finite: {found}.")
    return metrics


def _run_ranks(config: RunConfig, run_paths: RunPaths, request: StopRequest) -> None:
    """Let the ranks write the result beside the checkpoint, supervised as a segment is."""
    state = hold_lease(config, run_paths, "evaluate").state
    lease = state.lease
    assert lease is not None
    watch = HangWatch(config.segment.hang_seconds, first_step=lease.first_step)
    job = launch_job(config, run_paths, state)
    stop_requests = StopRequests(run_paths, lease.fence, request)
    with Heartbeat(run_paths, lease) as heartbeat, stop_requests:

        def take(report: Report) -> None:
            heartbeat.hear(report)

        # Audit and report follow at once, and most of their time is loading. Not before the ranks are launched.
        loading = ReportLoading(config.report.baseline)
        with job, LiveLog(run_paths, lease), loading, console.status("evaluating on the test split"):
            is_hung = supervise(job, watch, request, take)
        last_lines = _last_lines(job)
        if is_hung:
            message = f"The evaluation made no progress. {watch.cause}"
            alert(NO_PROGRESS, run_address(run_paths.store, config.run), message, run=config.run)
        account = settle_evaluation(config, run_paths, lease)
    if not _is_evaluated(run_paths, state):
        reason = watch.cause if is_hung else account.cause or f"The last lines of its log:\n{last_lines}"
        raise SegmentFailedError(f"The evaluation ended without a result. {reason}")


def _last_lines(job: Job) -> str:
    return "\n".join(job.read_log().splitlines()[-LOG_LINES_SHOWN:])
