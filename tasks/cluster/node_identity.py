"""Which node of which job this is, from the environment that the cluster sets.

Invariant: no two nodes of a job have one name, and a job that is started a second time is another incarnation.
"""

import os
from dataclasses import dataclass

# A pod's own variables; the index is that of an indexed job, which Kubernetes sets.
POD_HOST, POD_JOB, POD_NODES, POD_INDEX = "HOLDFAST_HOST", "HOLDFAST_JOB", "HOLDFAST_NODES", "JOB_COMPLETION_INDEX"


@dataclass(frozen=True)
class NodeIdentity:
    """This node's name in the cluster, which start of which job it belongs to, and the number of nodes."""

    node: str
    incarnation: str
    num_nodes: int
    job: str = ""  # its name, where one job may serve several segments


def read_identity() -> NodeIdentity:
    """From the environment of this process."""
    return _identity_of_pod() if POD_JOB in os.environ else _identity_of_task()


def _identity_of_task() -> NodeIdentity:
    """The identity that Slurm passes to each task of a step: srun(1), sbatch(1)."""
    environment = os.environ
    starts = environment.get("SLURM_RESTART_COUNT", "0")
    return NodeIdentity(
        node=environment["SLURMD_NODENAME"],
        incarnation=f"{environment['SLURM_JOB_ID']}.{starts}",
        num_nodes=int(environment["SLURM_NNODES"]),
        job=environment["SLURM_JOB_NAME"],
    )


def _identity_of_pod() -> NodeIdentity:
    """The identity that `cluster/kubernetes/jobset.py` passes to each pod. Two pods may be on one host."""
    environment = os.environ
    return NodeIdentity(
        node=f"{environment[POD_HOST]}-{environment[POD_INDEX]}",
        incarnation=environment[POD_JOB],
        num_nodes=int(environment[POD_NODES]),
    )
