"""Which implementation of `Job` a configuration asks for, and which one a lease was given.

Invariant: what a lease's ranks run on stands in the lease, not in the configuration: that may have changed since.
"""

from storage.objects.store import Store
from storage.runs.run_state import JobRecord, Lease
from tasks.launching.configuration import ClusterConfig
from tasks.launching.job import Job
from tasks.launching.orders import JobOrder
from tasks.launching.ranks import Ranks
from tasks.launching.slurm import SlurmJob, job_name, submission
from tasks.launching.slurm_commands import require_acceptable
from training.configuration import TrainConfig


def name_job(cluster: ClusterConfig, store: Store, run: str, fence: int) -> JobRecord | None:
    """The job that is to be launched for a lease; None for processes of this machine."""
    if cluster.kind == "local":
        return None
    return JobRecord(kind=cluster.kind, name=job_name(store, run, fence))


def make_job(record: JobRecord | None, order: JobOrder, store: Store) -> Job:
    """The ranks for an order, to be launched, or found, as a context manager."""
    spec = order.segment
    if record is None:
        return Ranks(spec, order.grace_seconds)
    return SlurmJob(record.name, store, spec.run, spec.fence, order.grace_seconds, order)


def require_acceptable_job(cluster: ClusterConfig, train: TrainConfig, grace_seconds: float) -> None:
    """Raise `ConfigurationError` if the cluster is not there, or would refuse such a job. Nothing is launched."""
    if cluster.kind == "slurm":
        require_acceptable(submission(cluster, train, grace_seconds, "holdfast-test"))


def is_under_way(record: JobRecord, store: Store, run: str, lease: Lease) -> bool:
    """Whether a lease's job waits or runs. Raises `ClusterUnavailableError`, and `ConfigurationError` elsewhere."""
    job = SlurmJob(record.name, store, run, lease.fence, grace_seconds=0)
    return job.find() and job.is_running(0)


def end_job(record: JobRecord, store: Store, run: str, lease: Lease, grace_seconds: float) -> str | None:
    """See to it that a lease's job does not run any more: it is asked to save and leave, and killed if it does not.

    What the cluster says of how it ended, None if it has forgotten it. Raises `ClusterUnavailableError`.
    """
    job = SlurmJob(record.name, store, run, lease.fence, grace_seconds)
    if not job.find():
        return None
    with job:
        pass
    return job.describe_end()
