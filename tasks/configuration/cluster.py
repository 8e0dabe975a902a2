"""Where the ranks of a segment run. No bit of the model depends on it.

Invariant: the number of nodes is a number of machines; how many ranks each of them has is `train.ranks`.
"""

from typing import Any, Literal

from pydantic import Field, model_validator

from training.configuration import ConfigModel, TrainConfig

SLURM_TIME = r"^(\d+-)?\d+(:\d{1,2}){0,2}$"
# What a Kubernetes API server takes for a namespace, and for an amount of memory.
DNS_LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
QUANTITY = r"^\d+(\.\d+)?([KMGTPE]i|[kMGTPE])?$"


class KubernetesConfig(ConfigModel):
    """What `cluster.kind = "kubernetes"` needs beside: each segment is a JobSet, with a pod for each node."""

    image: str | None = Field(
        None,
        min_length=1,
        description="Container image with Holdfast in it, as the project's Containerfile builds it. It must be given.",
    )
    namespace: str = Field("default", pattern=DNS_LABEL, description="Namespace of the JobSets and their pods.")
    context: str | None = Field(
        None,
        min_length=1,
        description="Context of the kubeconfig file. Default: its current one; within a pod its service account.",
    )
    service_account: str | None = Field(
        None, min_length=1, description="Service account of the pods. Default: the namespace's."
    )
    secrets: list[str] = Field(
        [],
        description="Names of secrets whose entries become environment variables of the pods, such as "
        "AWS_ACCESS_KEY_ID. Only the names are written down.",
    )
    memory_per_node: str | None = Field(
        None,
        pattern=QUANTITY,
        description='Memory of each node, requested and at most: "64Gi". Shared memory counts. Default: 2Gi for each '
        "rank requested, and no limit.",
    )
    shared_memory: str | None = Field(
        None,
        pattern=QUANTITY,
        description='At most so much of it in /dev/shm, which the ranks of a node share: "8Gi". Default: as much as '
        "the pod may have.",
    )
    scratch_volume: dict[str, Any] = Field(
        {"emptyDir": {}},
        description="The volume for scratch, as in a pod's volumes but without its name: { hostPath = { path = "
        '"/mnt/nvme" } }. An emptyDir is on the disk of the node\'s kubelet and goes with the pod.',
    )
    labels: dict[str, str] = Field(
        {},
        description='More labels of the JobSet and its pods: { "kueue.x-k8s.io/queue-name" = "research" }.',
    )
    pod: dict[str, Any] = Field(
        {},
        description="More of the pods' template, with metadata and spec as Kubernetes has them: { spec = { "
        'nodeSelector = { pool = "a100" } } }. It comes last, so it decides: tables are merged, and in lists '
        "the entries of the same name; other lists replace what was there. The container's name is ranks.",
    )


class ClusterConfig(ConfigModel):
    """The machines of a segment. Everything here may be changed between segments; with `local` only `kind` is used."""

    kind: Literal["local", "slurm", "kubernetes"] = Field(
        "local",
        description="local: this machine. slurm: each segment is a job of a Slurm cluster, submitted with sbatch from "
        "this machine; the store must be a bucket or a folder that all nodes mount, and Holdfast must be installed "
        "under the same path on all of them. kubernetes: each segment is a JobSet; the store must be a bucket or a "
        "volume that all pods mount.",
    )
    nodes: int = Field(
        1, ge=1, description="Machines of one segment. Each has train.ranks ranks; local has one machine."
    )
    min_nodes: int | None = Field(
        None,
        ge=1,
        description="Begin a segment with fewer machines than nodes when no more are free, but no fewer than this. The "
        "model is the same. Default: as many as nodes.",
    )
    interface: str | None = Field(
        None,
        min_length=1,
        description="Network interface over which the nodes' ranks talk, such as ib0. Default: the one over which a "
        "node reaches the first.",
    )
    join_seconds: float = Field(
        300, gt=0, description="Seconds within which all nodes of a job must have come, counted from the first."
    )
    silent_seconds: float | None = Field(
        None,
        gt=0,
        description="A machine that does not answer the others for so many seconds is lost, and these train on without "
        "it in the same segment, if min_nodes of them are left; where those that do not answer are half of them or "
        "more, after five times as long. One that answers is never lost, however slow its ranks are. A machine that "
        "is asked to stop leaves alone, too, if min_nodes are left. Default: one that is lost, or asked to stop, ends "
        "the segment.",
    )
    keep_seconds: float = Field(
        300,
        ge=0,
        description="Seconds for which the nodes of a Slurm job whose segment was lost wait in it for the run's next "
        "segment, which then goes on there with those that are left, min_nodes or more. 0: the job ends, and the next "
        "segment is a new one.",
    )
    grow_seconds: float | None = Field(
        None,
        gt=0,
        description="Where a Slurm job has fewer machines than nodes: when a segment ran there for so many seconds, "
        "and machines of its partition are idle, its ranks are asked to save and leave, and the next job takes them "
        "too. Default: the run grows when a segment ends for another reason.",
    )
    partition: str | None = Field(None, min_length=1, description="Slurm's partition. Default: the cluster's.")
    account: str | None = Field(None, min_length=1, description="Slurm's account that the jobs are charged to.")
    time_limit: str | None = Field(
        None,
        pattern=SLURM_TIME,
        description="Longest time of one job, as Slurm writes it: minutes, hours:minutes:seconds, or "
        "days-hours:minutes:seconds. The ranks are asked to save segment.grace_seconds before it is over, and the "
        "next segment is a new job.",
    )
    cpus_per_node: int | None = Field(
        None, ge=1, description="Processors of each node. Default: train.ranks times train.threads, and one for data."
    )
    gpus_per_node: int | None = Field(
        None, ge=1, description="GPUs of each node: Slurm's --gpus-per-node, nvidia.com/gpu of Kubernetes."
    )
    sbatch: list[str] = Field(
        [],
        description='More options of sbatch, each as on its command line: ["--exclusive", "--constraint=a100"]. '
        "They come last, so they decide.",
    )
    kubernetes: KubernetesConfig = KubernetesConfig()

    def num_cpus(self, train: TrainConfig) -> int:
        """Processors that a cluster is asked for, of each node."""
        return self.cpus_per_node or train.ranks * train.threads + 1

    @model_validator(mode="after")
    def _fewer_than_nodes(self) -> "ClusterConfig":
        if self.min_nodes is not None and self.min_nodes > self.nodes:
            raise ValueError(
                f"min_nodes must be at most nodes: {self.describe('min_nodes', 'nodes')}. Set nodes to the largest "
                "number of machines that a segment may have"
            )
        return self

    @model_validator(mode="after")
    def _local_is_one_machine(self) -> "ClusterConfig":
        if self.kind == "local" and self.nodes > 1:
            raise ValueError(
                f"with kind = 'local' a segment runs on this machine alone, but nodes is {self.nodes}. Set kind to "
                "'slurm' or 'kubernetes', or nodes to 1"
            )
        return self

    @model_validator(mode="after")
    def _kubernetes_has_an_image_and_a_fixed_number_of_nodes(self) -> "ClusterConfig":
        if self.kind != "kubernetes":
            return self
        if self.kubernetes.image is None:
            raise ValueError(
                "with kind = 'kubernetes' the pods need an image: set cluster.kubernetes.image to one that was built "
                "with the project's Containerfile"
            )
        if self.min_nodes not in (None, self.nodes):
            raise ValueError(
                f"a JobSet has a fixed number of pods: {self.describe('min_nodes', 'nodes')}. Take min_nodes out, and "
                "set nodes to what the cluster can give at once; it may be changed for the next segment"
            )
        return self
