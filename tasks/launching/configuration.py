"""Where the ranks of a segment run. No bit of the model depends on it.

Invariant: the number of nodes is a number of machines; how many ranks each of them has is `train.ranks`.
"""

from typing import Literal

from pydantic import Field, model_validator

from training.configuration import ConfigModel

SLURM_TIME = r"^(\d+-)?\d+(:\d{1,2}){0,2}$"


class ClusterConfig(ConfigModel):
    """The machines of a segment. Everything here may be changed between segments; with `local` only `kind` is used."""

    kind: Literal["local", "slurm"] = Field(
        "local",
        description="local: this machine. slurm: each segment is a job of a Slurm cluster, submitted with sbatch from "
        "this machine; the store must be a bucket or a folder that all nodes mount, and Holdfast must be installed "
        "under the same path on all of them.",
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
    gpus_per_node: int | None = Field(None, ge=1, description="GPUs of each node; Slurm's --gpus-per-node.")
    sbatch: list[str] = Field(
        [],
        description='More options of sbatch, each as on its command line: ["--exclusive", "--constraint=a100"]. '
        "They come last, so they decide.",
    )

    @model_validator(mode="after")
    def _fewer_than_nodes(self) -> "ClusterConfig":
        if self.min_nodes is not None and self.min_nodes > self.nodes:
            raise ValueError(
                f"min_nodes must be at most nodes: {self.told('min_nodes', 'nodes')}. Set nodes to the largest number "
                "of machines that a segment may have"
            )
        return self

    @model_validator(mode="after")
    def _local_is_one_machine(self) -> "ClusterConfig":
        if self.kind == "local" and self.nodes > 1:
            raise ValueError(
                f"with kind = 'local' a segment runs on this machine alone, but nodes is {self.nodes}. Set kind to "
                "'slurm', or nodes to 1"
            )
        return self
