"""What is handed to `sbatch` for a segment: the job's name, its options, and its script.

Invariant: they follow from lease and configuration alone, so who asks later comes to the same.
"""

import shlex
import sys

from storage.objects.digests import sha256_of_bytes
from storage.objects.store import Store
from tasks.cluster.processes import environment_of_installation
from tasks.configuration.cluster import ClusterConfig
from training.configuration import TrainConfig
from training.spec import SegmentSpec


def job_name(store: Store, run: str, fence: int) -> str:
    """Of the job for a lease; two stores may have a run of the same name."""
    return f"holdfast-{run}-{fence:08d}-{sha256_of_bytes(store.address.encode())[:8]}"


def submission(cluster: ClusterConfig, train: TrainConfig, grace_seconds: float, name: str) -> list[str]:
    """The options of `sbatch` for a job."""
    options = {
        "--job-name": name,
        "--nodes": cluster.nodes if cluster.min_nodes is None else f"{cluster.min_nodes}-{cluster.nodes}",
        "--cpus-per-task": cluster.num_cpus(train),
        "--signal": f"TERM@{grace_seconds:.0f}",
        "--partition": cluster.partition,
        "--account": cluster.account,
        "--time": cluster.time_limit,
        "--gpus-per-node": cluster.gpus_per_node,
    }
    # Queued again by Slurm, a job would begin the steps anew that its ranks have saved: the next segment is a new one.
    return [
        "--no-requeue",
        *(f"{name}={value}" for name, value in options.items() if value is not None),
        *cluster.sbatch,
    ]


def batch_script(spec: SegmentSpec, goes_on: bool) -> str:
    """One task on each node; when one of them fails the others cannot go on, unless the job `goes_on`."""
    environment = environment_of_installation()
    command = [sys.executable, "-u", "-m", "tasks.cluster.node", spec.store, spec.run, str(spec.fence)]
    command += ["--cache", spec.cache] if spec.cache is not None else []
    ends = "--no-kill --wait=0 --kill-on-bad-exit=0" if goes_on else "--kill-on-bad-exit=1"
    return "\n".join(
        [
            "#!/bin/bash",
            f"export PYTHONSAFEPATH=1 PYTHONPATH={shlex.quote(environment['PYTHONPATH'])}",
            f'exec srun --ntasks-per-node=1 {ends} --cpus-per-task="$SLURM_CPUS_PER_TASK" {shlex.join(command)}',
            "",
        ]
    )
