"""Taking up a run where it was left: settling a segment that was lost, and finding a resume point that is valid.

Invariant: a run is never taken from a living process. Whether the holder lives is known on its own machine; on another
one its heartbeat is watched for a while, by this machine's clock alone.
"""

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from storage.errors import ConfigurationError, ConflictError, RunBusyError
from storage.logs import LOG_NAME, MOST_KEPT_LOG_BYTES, write_log
from storage.objects.addresses import run_address
from storage.runs.holders import is_alive, is_visible, this_process
from storage.runs.kept_outcomes import Launch, settle_outcome
from storage.runs.run_state import JobRecord, Lease, RunState, SegmentRecord
from storage.runs.segments import CONNECTION_BROKE, Heartbeat, OutcomeRecord, find_heartbeat, find_outcome
from storage.runs.transitions import end_evaluation, end_segment
from tasks.cluster.launchers import end_job
from tasks.cluster.own_folders import FOLDER_NAME, why_not_own
from tasks.cluster.processes import find_orphans, wait_for_orphans
from tasks.cluster.rank_ends import RankEndsAccount, describe_rank_ends
from tasks.cluster.ranks import SPECIFICATION_NAME
from tasks.cluster.relayed import describe_relayed_ends
from tasks.cluster.reports import read_last_reports
from tasks.configuration.run import RunConfig
from tasks.console.announce import announce, warn
from tasks.prefect_bridge.alerts import NO_PROGRESS, send
from tasks.prefect_bridge.begun_again import wait_for_earlier_process
from tasks.prefect_bridge.segment_end import report_segment_end
from tasks.prefect_bridge.stale_flow_runs import close_flow_runs
from tasks.promotion.promotion import Promote, look_again, promote_checkpoint, promote_newest
from tasks.recovery.roll_back import answer_divergence
from tasks.recovery.taking_over import goes_on_as_it_is, take_over_watch
from tasks.run_paths import RunPaths
from tasks.supervision.heartbeat import HEARTBEAT_SECONDS
from tasks.supervision.launch import find_folder
from tasks.supervision.standing_still import SILENCE_SECONDS, describe_stopped
from tasks.verification.quarantine import fall_back_to_valid, require_checkpoint
from tasks.verification.verdicts import VerdictMaker

WATCH_SECONDS = 2.0
# Ranks report every few seconds.
FORGOTTEN_SECONDS = 3600.0
NO_OUTCOME = "no outcome recorded"
LOST = f"{NO_OUTCOME}: the process or the machine was killed"


def recover_run(
    config: RunConfig,
    run_paths: RunPaths,
    promote: Promote = promote_checkpoint,
    answer: Callable[[RunConfig, RunPaths], RunState] = answer_divergence,
) -> RunState:
    """Settle what the last segment left; if that was the last one, make sure that the final checkpoint is valid.

    A segment that diverged is answered by a rollback, or as `answer` decides, and one whose ranks go on in a cluster's
    job is taken over. What was quarantined or passed over is looked at again. Raises `RunBusyError`, `RunDivergedError`
    if no rollback is left, `NoCheckpointError` if none of the run's checkpoints can be used.
    """
    verdicts = VerdictMaker(config.retry)
    lease = run_paths.manifest.load_head().state.lease
    if lease is not None:
        wait_for_earlier_process(run_paths, lease, config.segment.grace_seconds)
        lease = run_paths.manifest.load_head().state.lease
    try:
        if lease is not None:
            require_dead_holder(run_paths, lease)
            close_flow_runs(run_paths, lease)
            if goes_on_as_it_is(config, run_paths, lease):
                return take_over_watch(run_paths, lease)
            if lease.work == "train":
                settle_segment(config, run_paths, lease, promote, verdicts)
            else:
                settle_evaluation(config, run_paths, lease)
        _put_away_forgotten(run_paths)
        answer(config, run_paths)
        run_paths.store.sweep()
        state = look_again(config, run_paths)
        # Ranks that train look at every byte when they start, and end without a step where one is not as it was.
        if state.is_trained or _made_no_step(state):
            state = fall_back_to_valid(run_paths, verdicts)
        require_checkpoint(state)
        return state
    except RunBusyError:
        raise
    except ConflictError as error:
        raise RunBusyError(f"Run {config.run!r} was just taken over by another process. {error}") from error


def _made_no_step(state: RunState) -> bool:
    last = state.segments[-1] if state.segments else None
    return last is not None and last.outcome in ("failed", "lost") and last.last_step <= last.first_step


def require_dead_holder(run_paths: RunPaths, lease: Lease) -> None:
    """Raise `RunBusyError` if the holder of the lease lives; one that cannot be seen is watched for a while."""
    require_no_living_holder_here(run_paths, lease)
    if is_alive(lease.holder) is not None:
        return
    announce(
        f"The run's lease is held by a process on {lease.holder.host}: waiting up to {SILENCE_SECONDS:.0f} s "
        "for a new heartbeat."
    )
    if _heart_beats(run_paths, lease.fence):
        raise _busy(run_paths, lease)


def require_no_living_holder_here(run_paths: RunPaths, lease: Lease) -> None:
    """Raise `RunBusyError` if the holder of the lease is seen to live; nothing is waited for."""
    # What an earlier attempt of this very flow held is over.
    if lease.holder != this_process() and is_alive(lease.holder):
        raise _busy(run_paths, lease)


def _busy(run_paths: RunPaths, lease: Lease) -> RunBusyError:
    stopped = describe_stopped(run_paths.store, run_paths.manifest.run, lease)
    if stopped is not None:
        # An event too: this process may not be looked at.
        send(NO_PROGRESS, run_address(run_paths.store, run_paths.manifest.run), stopped, run=run_paths.manifest.run)
        return RunBusyError(stopped)
    doing = "trained" if lease.work == "train" else "evaluated"
    return RunBusyError(
        f"Run {run_paths.manifest.run!r} is being {doing} by process {lease.holder.pid} on {lease.holder.host}. "
        "Wait until it ends, or stop it with SIGTERM: it saves a checkpoint and exits. Then run this command again."
    )


def settle_segment(
    config: RunConfig,
    run_paths: RunPaths,
    lease: Lease,
    promote: Promote = promote_checkpoint,
    verdicts: VerdictMaker | None = None,
) -> SegmentRecord:
    """End a segment whose supervisor is gone or has seen the ranks end: promote what it left, record how it ended.

    `verdicts` are those of a supervisor, which may have looked at some of its checkpoints before.
    """
    run, fence = run_paths.manifest.run, lease.fence
    ended = next((r for r in run_paths.manifest.load_head().state.segments if r.fence == fence), None)
    if ended is not None:  # by an earlier attempt, after which the store did not answer any more
        _put_away(run_paths, lease)
        return ended
    account = _wait_for_ranks(config, run_paths, lease)
    promote_newest(config, run_paths, fence, verdicts or VerdictMaker(config.retry), promote)
    outcome = _find_outcome(run_paths, lease)
    state = run_paths.manifest.load_head().state
    resume_step = state.promoted.step if state.promoted else 0
    seen = _last_seen(run_paths, state.lease or lease)
    last_step = max(seen.step, resume_step, outcome.last_step if outcome else 0)
    # Where it began may have moved back since it took the lease.
    record = _describe_segment(state.lease or lease, outcome, last_step, resume_step, seen, account)
    run_paths.manifest.commit(f"segment {fence} ended: {record.outcome}", end_segment(record))
    report_segment_end(run_address(run_paths.store, run), run, record, is_hung=outcome is not None and outcome.is_hung)
    _put_away(run_paths, lease)
    return record


def settle_evaluation(config: RunConfig, run_paths: RunPaths, lease: Lease) -> RankEndsAccount:
    """End an evaluation whose supervisor is gone, or has seen the ranks end: it is made again if there is no result.

    Returns how the ranks ended.
    """
    account = _wait_for_ranks(config, run_paths, lease)
    held = run_paths.manifest.load_head().state.lease
    if held is not None and held.fence == lease.fence:
        run_paths.manifest.commit("evaluation ended", end_evaluation(lease.fence))
    _put_away(run_paths, lease)
    return account


def _wait_for_ranks(config: RunConfig, run_paths: RunPaths, lease: Lease) -> RankEndsAccount:
    """Those whose launcher was killed may be saving right now. On another machine there is nothing to wait for.

    A cluster's job is ended wherever this runs. Returns how they ended by the account of their agents, and of the
    cluster.
    """
    if lease.job is not None:
        words = _end_job(config, run_paths, lease, lease.job)
        account = describe_relayed_ends(run_paths.store, config.run, lease.fence)
        return account if words is None else replace(account, cluster=words)
    if not is_visible(lease.holder):
        return RankEndsAccount()
    folder = _find_own_folder(run_paths, lease)
    if folder is None:
        return RankEndsAccount()
    if wait_for_orphans(folder, config.segment.grace_seconds):
        announce("Ranks of a process before were still running: waited until they saved a checkpoint and exited.")
    return describe_rank_ends(folder)


def _find_own_folder(run_paths: RunPaths, lease: Lease) -> Path | None:
    """The folder of the ranks of a lease, if it is one of ours."""
    folder = find_folder(run_paths, lease)
    is_own = why_not_own(folder, run_paths.scratch) is None or _is_specified_for(run_paths, folder, lease.fence)
    return folder if is_own else None


def _find_outcome(run_paths: RunPaths, lease: Lease) -> OutcomeRecord | None:
    """What the store has, or what its ranks kept here. Nodes of a cluster put theirs by themselves."""
    store, run = run_paths.store, run_paths.manifest.run
    folder = _find_own_folder(run_paths, lease) if lease.job is None else None
    if folder is None:
        return find_outcome(store, run, lease.fence)
    return settle_outcome(
        store, folder, Launch(store=store.address, run=run, fence=lease.fence, supervisor=lease.holder)
    )


def _end_job(config: RunConfig, run_paths: RunPaths, lease: Lease, job: JobRecord) -> str | None:
    """Where the cluster cannot be asked, its nodes find in the store that the lease is not theirs any more."""
    try:
        return end_job(job, run_paths.store, config.run, lease, config.segment.grace_seconds)
    except ConfigurationError as error:
        warn(
            f"The {job.kind} job {job.name} of segment {lease.fence} may still run, and cannot be ended from here; it "
            f"can promote no checkpoint any more, and its nodes leave when they next look at the run. {error}"
        )
        return None


def _put_away(run_paths: RunPaths, lease: Lease) -> None:
    """Keep what the ranks printed in the store, and remove their folder from local disk, if it is one of ours."""
    folder = find_folder(run_paths, lease)
    reason = why_not_own(folder, run_paths.scratch)
    if reason is None:
        _put_folder_away(run_paths, folder, lease.fence)
    elif os.path.lexists(folder):
        warn(
            f"The run's manifest names the folder {folder} for what segment {lease.fence} left on this machine. It is "
            f"left as it is: {reason}. If scratch was another one then, and it is not needed, remove it."
        )


def _is_specified_for(run_paths: RunPaths, folder: Path, fence: int) -> bool:
    """Whether the specification in this folder is of this segment: so it is where scratch was another one."""
    try:
        spec = json.loads((folder / SPECIFICATION_NAME).read_bytes())
        return (spec["store"], spec["run"], spec["fence"]) == (run_paths.store.address, run_paths.manifest.run, fence)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _put_folder_away(run_paths: RunPaths, folder: Path, fence: int) -> None:
    log = folder / LOG_NAME
    if log.is_file():
        write_log(run_paths.store, run_paths.manifest.run, fence, log, most_bytes=MOST_KEPT_LOG_BYTES)
    shutil.rmtree(folder, ignore_errors=True)


def _put_away_forgotten(run_paths: RunPaths) -> None:
    """Put away the folders here of segments that were settled by a process that died then, or on another machine.

    Not what is in use or was written to within the hour, nor what a run of the same name in another store has here.
    """
    for folder in sorted(run_paths.scratch.glob("*")):
        of_segment = FOLDER_NAME.fullmatch(folder.name)
        is_own = of_segment is not None and why_not_own(folder, run_paths.scratch) is None
        if of_segment is not None and is_own and folder.is_dir() and _is_forgotten(run_paths, folder):
            _put_folder_away(run_paths, folder, int(of_segment[1]))


def _is_forgotten(run_paths: RunPaths, folder: Path) -> bool:
    specification = folder / SPECIFICATION_NAME
    try:
        written_at = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    except FileNotFoundError:
        return False  # it is written to, or put away, right now
    if time.time() - written_at < FORGOTTEN_SECONDS or find_orphans(folder):
        return False
    try:
        is_ours: bool = json.loads(specification.read_bytes())["store"] == run_paths.store.address
    except FileNotFoundError:
        return True  # its ranks were never launched
    except (ValueError, KeyError):
        return False
    return is_ours


def _describe_segment(
    lease: Lease,
    outcome: OutcomeRecord | None,
    last_step: int,
    resume_step: int,
    seen: Heartbeat,
    account: RankEndsAccount,
) -> SegmentRecord:
    return SegmentRecord(
        fence=lease.fence,
        outcome=outcome.outcome if outcome else "lost",
        cause=describe_cause(outcome, account),
        first_step=lease.first_step,
        last_step=last_step,
        world_size=outcome.world_size if outcome else lease.world_size,
        started_at=lease.taken_at,
        seconds=outcome.seconds if outcome else _seconds_alive(seen),
        steps_lost=max(0, last_step - resume_step),
        is_final=outcome.is_final if outcome else False,
        phases=outcome.phases if outcome else seen.phases,
        saves=outcome.saves if outcome else None,
        throughput=outcome.throughput if outcome else None,
        divergence=outcome.divergence if outcome else None,
        planned_steps=lease.planned_steps,
        is_abandoned=outcome.is_abandoned if outcome else False,
        patience=outcome.patience if outcome else None,
        views=list(account.views) or (outcome.views if outcome else []),
        view_totals=account.view_totals or (outcome.view_totals if outcome else None),
        holdfast=lease.holdfast,
    )


def describe_cause(outcome: OutcomeRecord | None, account: RankEndsAccount) -> str:
    """The ranks' words; of what they did not choose also those of the cluster or the agents, which know why.

    A rank that lost its connection to another one knows no cause: the one that ended first has it.
    """
    if outcome is None:
        said = [LOST] if account.cause is None else [NO_OUTCOME, account.cause]
    elif outcome.outcome in ("completed", "budget", "diverged"):
        return outcome.cause
    elif CONNECTION_BROKE in outcome.cause and account.cause is not None:
        said = [account.cause]
    else:
        said = [outcome.cause, account.deadly or account.kills or ""]
    words = [sentence for sentence in (*said, account.cluster) if sentence]
    return "".join(f"{sentence.removesuffix('.')}. " for sentence in words[:-1]) + "".join(words[-1:])


def _seconds_alive(seen: Heartbeat) -> float:
    """As long as there were signs of life; where no report is later, until the next beat was due."""
    num_beats = seen.beat - 1 if seen.phases else seen.beat
    return max(num_beats * HEARTBEAT_SECONDS, sum(seen.phases.values()))


def _last_seen(run_paths: RunPaths, lease: Lease) -> Heartbeat:
    """The last sign of life: by the heartbeat, or by the ranks' own reports if this is their machine."""
    seen = find_heartbeat(run_paths.store, run_paths.manifest.run, lease.fence) or Heartbeat(
        beat=0, step=0, written_at=0
    )
    steps, phases = [lease.first_step, seen.step], seen.phases
    for report in read_last_reports(find_folder(run_paths, lease) / "progress.jsonl"):
        steps.append(report.step)
        phases = report.phases
    return seen.model_copy(update={"step": max(steps), "phases": phases})


def _heart_beats(run_paths: RunPaths, fence: int) -> bool:
    """Whether the heartbeat changes within the time after which silence means death."""
    first = find_heartbeat(run_paths.store, run_paths.manifest.run, fence)
    deadline = time.monotonic() + SILENCE_SECONDS
    while time.monotonic() < deadline:
        time.sleep(WATCH_SECONDS)  # a life on another machine shows itself only over time
        if find_heartbeat(run_paths.store, run_paths.manifest.run, fence) != first:
            return True
    return False
