"""A node of a Slurm job is killed while its ranks train, and the others train on in the same job and segment.

A real Slurm. Shown is what Slurm does with the job and its step: nothing, where both may go on without a node.
"""

from pathlib import Path
from typing import Any

import pytest

from tasks.cluster.orders import read_node_ends
from tasks.cluster.slurm.job import SlurmJob
from tasks.configuration.cluster import ClusterConfig
from tests.helpers.leased_segments import ENDLESS, RUN, LeasedSegment, follow, follow_until_it_trains
from tests.helpers.slurm_cluster import SlurmCluster

# A busy machine is not silent: the kernel of a node that is killed says at once that nobody is there.
CLUSTER: dict[str, Any] = {"kind": "slurm", "nodes": 2, "min_nodes": 1, "silent_seconds": 120}


def newest_step(job: SlurmJob) -> int:
    return max((status.step for status in job.read_rank_statuses()), default=0)


def batch_node(slurm: SlurmCluster, job: SlurmJob) -> str:
    return slurm.read_job(job.number)["BatchHost"]


@pytest.mark.slow
@pytest.mark.parametrize("keep_seconds", [0, 60])
def test_when_a_node_is_killed_the_other_one_trains_on_in_the_same_job(
    keep_seconds: float, own_slurm: SlurmCluster, tmp_path: Path
) -> None:
    segment = LeasedSegment(tmp_path, ClusterConfig(**CLUSTER), ENDLESS)
    segment.order = segment.order.model_copy(update={"keep_seconds": keep_seconds})
    job = segment.make_job()
    assert isinstance(job, SlurmJob)
    with job:
        follow_until_it_trains(job)
        (lost,) = {"n1", "n2"} - {batch_node(own_slurm, job)}
        own_slurm.kill_node(lost)
        follow(job, lambda: lost not in own_slurm.read_job(job.number)["NodeList"])
        own_slurm.wait_until(f"{lost} is given up", lambda: "DOWN" in own_slurm.read_node(lost)["State"])
        assert own_slurm.read_job(job.number)["JobState"] == "RUNNING"
        step = newest_step(job)
        follow(job, lambda: newest_step(job) > step)
        assert [(end.node, end.how) for end in read_node_ends(segment.store, RUN, segment.fence)] == [(lost, "lost")]
        job.stop()
        follow(job)
    outcome = segment.outcome
    assert outcome is not None and outcome.outcome == "preempted", job.read_log()
    (view,) = outcome.views
    assert (len(view.lost), view.num_ranks) == (1, 1)
    assert segment.newest_saved_step == outcome.last_step > step
