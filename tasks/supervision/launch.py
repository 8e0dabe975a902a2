"""What ranks are launched with: the run's lease, and a specification of their work in a folder of their own.

Invariant: a process that launches ranks holds the lease, and the lease names their folder, so a process that finds it
later finds them too.
"""

from pathlib import Path
from typing import Literal

from storage.runs.holders import this_process
from storage.runs.manifest import Generation
from storage.runs.retention import find_best
from storage.runs.rollbacks.quarantine import has_lost_all
from storage.runs.run_state import Lease, RunState
from storage.runs.transitions import take_lease
from tasks.cluster.job import Job
from tasks.cluster.launchers import find_kept_job, make_job, name_job, require_acceptable_job
from tasks.cluster.orders import JobOrder
from tasks.cluster.specification import make_specification, resume_point
from tasks.config.changes import as_begun
from tasks.configuration.run import RunConfig
from tasks.run_paths import RunPaths, open_run_paths
from training.spec import SegmentSpec, StartPoint

Work = Literal["train", "evaluate"]


def hold_lease(config: RunConfig, run_paths: RunPaths, work: Work) -> Generation:
    """Take the run's lease for this process. Raises `RunBusyError` if another process was quicker.

    One that this process has already was granted to an earlier call whose answer was lost: before ranks are launched,
    `recover` has settled whatever else there was.
    """
    head = run_paths.manifest.load_head()
    if head.state.lease is not None and head.state.lease.holder == this_process():
        return head
    last = head.state.segments[-1:] if work == "train" else []
    kept = find_kept_job(config.cluster, config.train, run_paths.store, config.run, last[0].fence) if last else None
    change = take_lease(
        this_process(),
        config.num_ranks,
        work,
        lambda fence: _new_folder(run_paths, work, fence),
        lambda fence: kept or name_job(config.cluster, run_paths.store, config.run, fence),
    )
    return run_paths.manifest.commit("segment began" if work == "train" else "evaluation began", change)


def find_folder(run_paths: RunPaths, lease: Lease) -> Path:
    """The folder of a lease's ranks on their machine."""
    return Path(lease.scratch) if lease.scratch is not None else run_paths.segment_scratch(lease.fence)


def specify_segment(config: RunConfig, run_paths: RunPaths, state: RunState) -> SegmentSpec:
    """Specification for the ranks of the lease: the configuration, and the promoted checkpoint to start from."""
    lease = state.lease
    assert lease is not None
    config = as_begun(config, state)
    point, best = state.promoted, find_best(state) if lease.work == "evaluate" else None
    assert point is not None or not has_lost_all(state), "required before: no run begins anew by itself"
    return make_specification(
        config,
        run_paths,
        state,
        lease.work,
        scratch=find_folder(run_paths, lease),
        fence=lease.fence,
        resume=None if point is None else resume_point(point),
        best=None if best is None or best == point else resume_point(best),
        start=_start_of(state),
        divergence=config.divergence,
        rollbacks=state.rollbacks,
        budget_seconds=config.segment.seconds if lease.work == "train" else None,
        store_seconds=config.retry.store_seconds,
    )


def _start_of(state: RunState) -> StartPoint | None:
    start = state.start
    return None if start is None else StartPoint(path=start.path, digest=start.digest, frozen=start.frozen)


def launch_job(config: RunConfig, run_paths: RunPaths, state: RunState) -> Job:
    """The ranks of the lease, to be launched as a context manager, or found if they run already."""
    assert state.lease is not None
    return make_job(
        state.lease.job, _order(config, run_paths, specify_segment(config, run_paths, state)), run_paths.store
    )


def require_launchable(config: RunConfig) -> None:
    """Raise `ConfigurationError` if the cluster would refuse the ranks: better before the data are prepared than after.

    Raises `ClusterUnavailableError` too. A run that needs no ranks any more needs no cluster.
    """
    if config.cluster.kind == "local":
        return
    head = open_run_paths(config).manifest.find_head()
    is_over = head is not None and head.state.is_complete and _steps_of(config, head.state) == head.state.steps_total
    if not is_over:
        require_acceptable_job(config.cluster, config.train, config.segment.grace_seconds)


def _steps_of(config: RunConfig, state: RunState) -> int:
    return as_begun(config, state).train.num_steps


def _order(config: RunConfig, run_paths: RunPaths, spec: SegmentSpec) -> JobOrder:
    private_folder = None if run_paths.private_folder is None else str(run_paths.private_folder)
    return JobOrder(
        segment=spec,
        cluster=config.cluster,
        grace_seconds=config.segment.grace_seconds,
        private_folder=private_folder,
        notices=config.notices,
        # A pod that fails ends its JobSet, and an evaluation is short.
        keep_seconds=config.cluster.keep_seconds if config.cluster.kind == "slurm" and spec.work == "train" else 0,
    )


def _new_folder(run_paths: RunPaths, work: Work, fence: int) -> Path:
    # Who follows a run's segments takes folders with a number for a name for theirs.
    return run_paths.segment_scratch(fence) if work == "train" else run_paths.scratch / f"evaluation-{fence:08d}"
