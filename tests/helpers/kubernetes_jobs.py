"""A segment of two nodes on a Kubernetes of the tests, under a lease of its own, and following its job."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage.objects.local_store import LocalStore
from storage.runs.run_state import JobRecord, Lease
from storage.runs.segments import OutcomeRecord, find_outcome
from tasks.launching.configuration import ClusterConfig
from tasks.launching.kubernetes.job import KubernetesJob
from tasks.launching.launchers import make_job, name_job
from tasks.launching.orders import JobOrder
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.kubernetes_cluster import IMAGE
from tests.helpers.kubernetes_server import NAMESPACE
from tests.helpers.runs import lease_run, make_run
from tests.helpers.training import make_spec

POLL_SECONDS = 0.2
RUN = "small"
OWN = {"image": IMAGE, "namespace": NAMESPACE}
ENDLESS = {"steps": 1_000_000}


class Job:
    """A segment of two nodes under a lease of its own, from the store alone."""

    def __init__(
        self, folder: Path, train: dict[str, Any] | None = None, grace: float = 30, nodes: int = 2, **own: Any
    ) -> None:
        self.store = LocalStore(folder / "store")
        self.manifest = make_run(self.store, RUN)
        dataset = publish_small_dataset(self.store, folder / "work", rows=100)
        self.fence = lease_run(self.manifest, ranks=2)
        spec = make_spec(self.store, dataset, folder / "segment" / "of" / "this", self.fence, ranks=1, **train or {})
        self.config = cluster_of(nodes, **own)
        self.order = JobOrder(segment=spec, cluster=self.config, grace_seconds=grace)
        record = name_job(self.config, self.store, RUN, self.fence)
        assert record is not None
        self.record: JobRecord = record

    def launch(self) -> KubernetesJob:
        job = make_job(self.record, self.order, self.store)
        assert isinstance(job, KubernetesJob)
        return job

    @property
    def lease(self) -> Lease:
        lease = self.manifest.load_head().state.lease
        assert lease is not None
        return lease

    @property
    def outcome(self) -> OutcomeRecord | None:
        return find_outcome(self.store, RUN, self.fence)


def cluster_of(nodes: int = 2, **own: Any) -> ClusterConfig:
    return ClusterConfig.model_validate({"kind": "kubernetes", "nodes": nodes, "kubernetes": {**OWN, **own}})


def follow(job: KubernetesJob, until: Callable[[], bool] = lambda: False) -> None:
    while job.is_running(POLL_SECONDS) and not until():
        pass


def follow_until_it_trains(job: KubernetesJob) -> None:
    follow(job, lambda: any(report.step > 0 for report in job.read_reports()))
