"""Going on with ranks that work in a cluster's job though their supervisor is gone.

Invariant: a job that trains is never doubled, and not ended either, unless it has to begin anew with what changed.
"""

from storage.errors import ConfigurationError, RunBusyError
from storage.objects.addresses import run_address
from storage.runs.holders import this_process
from storage.runs.manifest import require_fence
from storage.runs.run_state import Lease, RunState
from storage.runs.transitions import take_over
from tasks.cluster.job import Job
from tasks.cluster.launchers import is_under_way
from tasks.config.changes import describe_changes, read_stored
from tasks.configuration.run import RunConfig
from tasks.console.announce import announce
from tasks.run_paths import RunPaths
from training.metrics.reporter import CheckpointReport

# Leases that this process takes over, by the address of their run and their fence, until it watches their ranks: after
# a lost answer they look like those whose job an earlier attempt of its own has asked to end.
_taken_over: set[tuple[str, int]] = set()


def goes_on_as_it_is(config: RunConfig, run_paths: RunPaths, lease: Lease) -> bool:
    """Whether the lease's ranks train on in a job, with this very configuration. Raises `ClusterUnavailableError`.

    Not of a lease whose ranks this process has watched: an earlier attempt of its own has asked the job to end.
    """
    if lease.job is None or lease.work != "train":
        return False
    if lease.holder == this_process() and _name(run_paths, lease) not in _taken_over:
        return False
    try:
        if not is_under_way(lease.job, run_paths.store, config.run, lease):
            return False
    except ConfigurationError:
        return False  # no commands of the cluster are here; the process that settles the segment decides what follows
    changes = describe_changes(read_stored(run_paths.manifest.load_head().state.config), config.model_dump(mode="json"))
    if changes:
        announce(
            f"The {lease.job.kind} job {lease.job.name} still trains this run, with another configuration: it is asked "
            f"to save and leave. Changed: {', '.join(changes)}."
        )
        return False
    announce(f"The {lease.job.kind} job {lease.job.name} still trains this run: it is watched again.")
    return True


def take_over_watch(run_paths: RunPaths, lease: Lease) -> RunState:
    """Hold a lease whose ranks go on in place of its earlier holder. May be repeated where its answer was lost."""
    _taken_over.add(_name(run_paths, lease))
    event = f"segment {lease.fence} is watched by another process"
    return run_paths.manifest.commit(event, take_over(lease, this_process())).state


def begin_watch(run_paths: RunPaths, lease: Lease) -> None:
    """From now on this process watches the lease's ranks: an attempt that fails asks them to end."""
    _taken_over.discard(_name(run_paths, lease))


def _name(run_paths: RunPaths, lease: Lease) -> tuple[str, int]:
    return run_address(run_paths.store, run_paths.manifest.run), lease.fence


def require_own_watch(run_paths: RunPaths, job: Job, fence: int) -> None:
    """Raise `RunBusyError` if another process watches the job by now, for which it is left running.

    That one took this process for dead: it stood still for longer than a heartbeat may be late. Raises `FencedError` if
    the segment is over for it: its ranks may promote nothing any more.
    """
    state = run_paths.manifest.load_head().state
    require_fence(state, fence)
    lease = state.lease
    assert lease is not None
    if lease.holder == this_process():
        return
    job.leave()
    raise RunBusyError(
        f"Run {run_paths.manifest.run!r} is watched by process {lease.holder.pid} on {lease.holder.host} now, which "
        "heard nothing of this one for a while. Its ranks work on; there is nothing to do here."
    )


def was_taken_up(state: RunState, found: CheckpointReport) -> bool:
    """Whether what ranks report was handled when the run stood so: their earlier supervisor had the reports, too."""
    return state.promoted is not None and found.step <= state.promoted.step
