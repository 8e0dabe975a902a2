"""Which implementation of `Job` a configuration asks for, and which one a lease was given.

Invariant: what a lease's ranks run on stands in the lease, not in the configuration: that may have changed since.
"""

import re
from contextlib import suppress
from typing import Protocol

from storage.errors import ClusterUnavailableError, ConfigurationError
from storage.objects.store import Store
from storage.runs.run_state import JobRecord, Lease
from tasks.cluster.agents import kept_agent
from tasks.cluster.job import Job
from tasks.cluster.kubernetes.jobset import jobset_name
from tasks.cluster.orders import JobOrder, load_order, read_node_ends
from tasks.cluster.ranks import Ranks
from tasks.cluster.slurm.commands import require_acceptable
from tasks.cluster.slurm.job import SlurmJob
from tasks.cluster.slurm.submission import job_name, submission
from tasks.configuration.cluster import ClusterConfig
from training.configuration import TrainConfig

NO_CLIENT = (
    "cluster.kind is 'kubernetes', which needs the package kubernetes: it is not installed. Install it here, with "
    "`pip install kubernetes`; the nodes need none."
)


class ClusterJob(Job, Protocol):
    """A job that can be found by others than those who launched it."""

    def find(self) -> bool:
        """Whether the cluster remembers such a job. Raises `ClusterUnavailableError`."""


def name_job(cluster: ClusterConfig, store: Store, run: str, fence: int) -> JobRecord | None:
    """The job that is to be launched for a lease; None for processes of this machine."""
    if cluster.kind == "local":
        return None
    name = jobset_name if cluster.kind == "kubernetes" else job_name
    return JobRecord(kind=cluster.kind, name=name(store, run, fence))


def find_kept_job(config: ClusterConfig, train: TrainConfig, store: Store, run: str, fence: int) -> JobRecord | None:
    """The job of the lost segment `fence`, if its nodes wait for the next one and are what the configuration asks for.

    One that waits and is not is ended. Raises `ClusterUnavailableError`.
    """
    if config.kind != "slurm":
        return None
    idle = [end for end in read_node_ends(store, run, fence) if end.how == "idle"]
    if not idle:
        return None
    job = _slurm_job(JobRecord(kind="slurm", name=idle[0].job), store, run, fence)
    nodes, before = job.find_idle_nodes(), load_order(store, run, fence)
    is_as_asked = before.cluster == config and before.segment.train.ranks == train.ranks
    if is_as_asked and (config.min_nodes or config.nodes) <= len(nodes) <= config.nodes:
        return JobRecord(kind="slurm", name=idle[0].job, nodes=nodes)
    job.release()
    return None


def release_job(record: JobRecord | None, store: Store, run: str, fence: int) -> None:
    """End a job whose nodes wait for a segment that will not come. Where Slurm does not answer, they leave later."""
    if record is not None and record.kind == "slurm":
        with suppress(ClusterUnavailableError):
            _slurm_job(record, store, run, fence).release()


def make_job(record: JobRecord | None, order: JobOrder, store: Store) -> Job:
    """The ranks for an order, to be launched, or found, as a context manager. Raises `ConfigurationError`."""
    spec = order.segment
    if record is None:
        return Ranks(spec, order.grace_seconds, kept=kept_agent())
    return _job(record, store, spec.run, spec.fence, order.grace_seconds, order)


def require_acceptable_job(cluster: ClusterConfig, train: TrainConfig, grace_seconds: float) -> None:
    """Raise `ConfigurationError` if the cluster is not there, or would refuse such a job. Nothing is launched."""
    if cluster.kind == "slurm":
        require_acceptable(submission(cluster, train, grace_seconds, "holdfast-test"))
    elif cluster.kind == "kubernetes":
        try:
            from tasks.cluster.kubernetes.job import require_acceptable_jobset  # here: its client is optional
        except ImportError as error:
            raise ConfigurationError(NO_CLIENT) from error
        require_acceptable_jobset(cluster, train, grace_seconds)


def is_under_way(record: JobRecord, store: Store, run: str, lease: Lease) -> bool:
    """Whether a lease's job waits or runs. Raises `ClusterUnavailableError`, and `ConfigurationError` elsewhere."""
    job = _job(record, store, run, lease.fence, grace_seconds=0)
    return job.find() and job.is_running(0)


def end_job(record: JobRecord, store: Store, run: str, lease: Lease, grace_seconds: float) -> str | None:
    """See to it that a lease's job does not run any more: it is asked to save and leave, and killed if it does not.

    How it ended by the cluster's account, None if the cluster has forgotten it. Raises `ClusterUnavailableError`, and
    `ConfigurationError` elsewhere.
    """
    job = _job(record, store, run, lease.fence, grace_seconds)
    if not job.find():
        return None
    with job:
        pass
    return job.describe_end()


def _job(
    record: JobRecord, store: Store, run: str, fence: int, grace_seconds: float, order: JobOrder | None = None
) -> ClusterJob:
    if record.kind != "kubernetes":
        return _slurm_job(record, store, run, fence, grace_seconds, order)
    _require_own_name(record, store, run)
    try:
        from tasks.cluster.kubernetes.job import KubernetesJob  # its client is optional, and takes time to load
    except ImportError as error:
        raise ConfigurationError(NO_CLIENT) from error
    return KubernetesJob(record.name, store, run, fence, grace_seconds, order)


def _slurm_job(
    record: JobRecord, store: Store, run: str, fence: int, grace_seconds: float = 0, order: JobOrder | None = None
) -> SlurmJob:
    _require_own_name(record, store, run)
    return SlurmJob(record.name, store, run, fence, grace_seconds, order, record.nodes)


def _require_own_name(record: JobRecord, store: Store, run: str) -> None:
    """Raise `ConfigurationError` for a job that `name_job` never named for this run, on behalf of whatever segment.

    Any user who may write to the store could name any job of this user there, to have it ended.
    """
    name = jobset_name if record.kind == "kubernetes" else job_name
    numbered = re.fullmatch(r".*-(\d{8,})-[0-9a-f]{8}", record.name)
    if numbered is None or record.name != name(store, run, int(numbered[1])):
        raise ConfigurationError(
            f"The store names {record.name!r} as the {record.kind} job of run {run!r}. Its jobs have names such as "
            f"{name(store, run, 1)!r}: this one is left alone."
        )
