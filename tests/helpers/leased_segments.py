"""A segment under a lease of its own, for a cluster, from the store alone; and following its job."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage.checkpoints.checkpoints import list_complete_checkpoints
from storage.objects.local_store import LocalStore
from storage.runs.run_state import JobRecord, Lease
from storage.runs.segments import OutcomeRecord, find_outcome
from tasks.cluster.job import Job
from tasks.cluster.launchers import make_job, name_job
from tasks.cluster.orders import JobOrder
from tasks.configuration.cluster import ClusterConfig
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.runs import lease_run, make_run
from tests.helpers.training import make_spec

POLL_SECONDS = 0.2
RUN = "small"
ENDLESS = {"steps": 1_000_000}


class LeasedSegment:
    """Of the small model, with one rank on each node."""

    def __init__(
        self, folder: Path, cluster: ClusterConfig, train: dict[str, Any] | None = None, grace_seconds: float = 30
    ) -> None:
        self.store = LocalStore(folder / "store")
        self.manifest = make_run(self.store, RUN)
        dataset = publish_small_dataset(self.store, folder / "work", rows=100)
        self.fence = lease_run(self.manifest, ranks=2)
        spec = make_spec(
            self.store, dataset, folder / "runs" / RUN / f"{self.fence:08d}", self.fence, ranks=1, **train or {}
        )
        self.order = JobOrder(segment=spec, cluster=cluster, grace_seconds=grace_seconds)
        record = name_job(cluster, self.store, RUN, self.fence)
        assert record is not None
        self.record: JobRecord = record

    def make_job(self) -> Job:
        return make_job(self.record, self.order, self.store)

    @property
    def lease(self) -> Lease:
        lease = self.manifest.load_head().state.lease
        assert lease is not None
        return lease

    @property
    def outcome(self) -> OutcomeRecord | None:
        return find_outcome(self.store, RUN, self.fence)

    @property
    def newest_saved_step(self) -> int | None:
        saved = list_complete_checkpoints(self.store, RUN, self.fence)
        return saved[0][0] if saved else None


def follow(job: Job, until: Callable[[], bool] = lambda: False) -> None:
    """Until that holds, or the ranks have ended."""
    while job.is_running(POLL_SECONDS) and not until():
        pass


def follow_until_it_trains(job: Job) -> None:
    follow(job, lambda: any(report.step > 0 for report in job.read_reports()))
    assert job.is_running(0), f"it has ended: {job.describe_end()}\n{job.read_log()}"
