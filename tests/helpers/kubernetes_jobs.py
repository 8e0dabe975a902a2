"""A segment of two nodes on a Kubernetes of the tests, under a lease of its own."""

from pathlib import Path
from typing import Any

from tasks.cluster.kubernetes.job import KubernetesJob
from tasks.configuration.cluster import ClusterConfig
from tests.helpers.kubernetes_cluster import IMAGE
from tests.helpers.kubernetes_server import NAMESPACE
from tests.helpers.leased_segments import LeasedSegment

OWN = {"image": IMAGE, "namespace": NAMESPACE}


class Job(LeasedSegment):
    """`own` are settings of `[cluster.kubernetes]`."""

    def __init__(
        self, folder: Path, train: dict[str, Any] | None = None, grace: float = 30, nodes: int = 2, **own: Any
    ) -> None:
        super().__init__(folder, cluster_of(nodes, **own), train, grace)

    def launch(self) -> KubernetesJob:
        job = self.make_job()
        assert isinstance(job, KubernetesJob)
        return job


def cluster_of(nodes: int = 2, **own: Any) -> ClusterConfig:
    return ClusterConfig.model_validate({"kind": "kubernetes", "nodes": nodes, "kubernetes": {**OWN, **own}})
