"""What a user of Slurm meets besides a job that simply runs: refusals, nodes that do not come, leases that are lost."""

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from storage.checkpoints.checkpoints import hash_weights
from storage.errors import ConfigurationError
from storage.runs.transitions import end_evaluation
from tasks.cluster.launchers import end_job, is_under_way, require_acceptable_job
from tasks.cluster.slurm.job import SlurmJob
from tasks.cluster.slurm.submission import submission
from tasks.configuration.cluster import ClusterConfig
from tests.helpers.commands import Runner
from tests.helpers.leased_segments import ENDLESS, RUN, LeasedSegment, follow
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.s3_server import BUCKET, make_bucket, use_s3
from tests.helpers.slurm_cluster import SlurmCluster
from tests.helpers.tiny_runs import write_tiny_configuration
from tests.helpers.training import checkpoint_at, train_to_end
from training.configuration import TrainConfig


class Job(LeasedSegment):
    """A segment of two nodes; `cluster` are more settings of `[cluster]`."""

    def __init__(self, folder: Path, train: dict[str, Any] | None = None, **cluster: Any) -> None:
        super().__init__(folder, ClusterConfig(kind="slurm", nodes=2, **cluster), train)

    def launch(self) -> SlurmJob:
        job = self.make_job()
        assert isinstance(job, SlurmJob)
        return job


def own_environment(prefect_server: dict[str, str]) -> dict[str, str]:
    """What this test has set, and the server of all tests."""
    return {**prefect_server, **os.environ, "PREFECT_API_URL": prefect_server["PREFECT_API_URL"]}


def stop_agents(slurm: SlurmCluster, node: str) -> bool:
    """Let what Holdfast runs on a node stand still, before it has met the others; whether there was anything."""
    agents = [process for process in slurm.find_job_processes(node) if "tasks.cluster.node" in process.cmdline()]
    for process in agents:
        process.suspend()
    return bool(agents)


def test_a_job_that_slurm_refuses_is_one_error_and_nothing_is_recorded(
    own_slurm: SlurmCluster, tmp_path: Path, prefect_server: dict[str, str]
) -> None:
    source = write_parquet(tmp_path / "data.parquet", text_columns(200))
    configuration = write_tiny_configuration(tmp_path, "refused", tmp_path / "store", source)
    settings = {"cluster__kind": "slurm", "cluster__partition": "no-such-partition"}
    refused = Runner(configuration, settings, own_environment(prefect_server)).call("run")
    assert refused.returncode == 2
    assert "Slurm refused sbatch" in refused.stderr and "no-such-partition" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not any(path.is_file() for path in (tmp_path / "store").rglob("*"))


def test_where_slurm_is_not_installed_the_error_says_where_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"sbatch is not on this machine's PATH.* login node"):
        require_acceptable_job(job.order.cluster, job.order.segment.train, 30)


def test_a_job_that_may_begin_with_fewer_nodes_gets_all_that_are_free(own_slurm: SlurmCluster) -> None:
    options = submission(ClusterConfig(kind="slurm", nodes=2, min_nodes=1), TrainConfig(ranks=1), 30, "both")
    known = own_slurm.wait_for_job(own_slurm.submit("true", *options), "COMPLETED")
    assert known["NodeList"] == "n[1-2]"


@pytest.mark.slow
def test_a_job_that_runs_is_found_and_launched_once(own_slurm: SlurmCluster, tmp_path: Path) -> None:
    job = Job(tmp_path, train=ENDLESS)
    with job.launch() as first:
        follow(first, lambda: first.describe_wait() is None)
        with job.launch():  # as by a second process, which has nothing but the lease
            assert is_under_way(job.record, job.store, RUN, job.lease)
            assert len(own_slurm.call("squeue", "--noheader", "--format=%A").split()) == 1
    assert not is_under_way(job.record, job.store, RUN, job.lease)
    end_job(job.record, job.store, RUN, job.lease, grace_seconds=1)  # it is over, and that is no error


@pytest.mark.slow
def test_a_node_that_never_comes_is_missed_and_the_others_are_named(own_slurm: SlurmCluster, tmp_path: Path) -> None:
    job = Job(tmp_path, join_seconds=20)
    with job.launch() as launched:
        follow(launched, lambda: stop_agents(own_slurm, "n2"))
        follow(launched)
    assert job.outcome is not None and job.outcome.outcome == "failed"
    assert "the job has 2 nodes, but within 20 s (cluster.join_seconds) only n1 came" in job.outcome.cause


@pytest.mark.slow
def test_nodes_whose_lease_was_taken_leave_by_themselves(own_slurm: SlurmCluster, tmp_path: Path) -> None:
    job = Job(tmp_path, train=ENDLESS)
    with job.launch() as launched:
        follow(launched, lambda: launched.read_reports() != [])
        job.manifest.commit("taken up elsewhere", end_evaluation(job.fence))
        follow(launched)
        assert "the ranks of this node are killed" in (tmp_path / f"slurm-{launched.number}.out").read_text()
    # One node may look before the other, whose ranks then lose the connection, and say so while they can.
    assert job.outcome is None or "the connection to another rank broke" in job.outcome.cause


@pytest.mark.slow
def test_a_job_that_is_queued_again_does_not_train_its_fence_a_second_time(
    own_slurm: SlurmCluster, tmp_path: Path
) -> None:
    job = Job(tmp_path, train=ENDLESS, sbatch=["--requeue"])
    with job.launch() as launched:
        follow(launched, lambda: launched.read_reports() != [])
        own_slurm.call("scontrol", "requeue", str(launched.number))
        follow(launched)
        assert "Slurm queued the job again" in (launched.describe_end() or "")
    assert job.outcome is not None and job.outcome.outcome == "preempted"


@pytest.mark.slow
def test_a_node_that_dies_is_named(own_slurm: SlurmCluster, tmp_path: Path) -> None:
    job = Job(tmp_path, train=ENDLESS)
    with job.launch() as launched:
        follow(launched, lambda: launched.read_reports() != [])
        own_slurm.kill_node("n2")
        follow(launched)
        assert launched.describe_end() == "Slurm reports NODE_FAIL, NodeDown: n2 (Not responding)"


@pytest.mark.slow
def test_ranks_save_before_the_time_limit_of_their_job(own_slurm: SlurmCluster, tmp_path: Path) -> None:
    job = Job(tmp_path, train=ENDLESS, time_limit="2")
    with job.launch() as launched:
        follow(launched)
        assert launched.describe_end() is None  # they were gone before it was over
    assert job.outcome is not None and job.outcome.outcome == "preempted"
    assert job.newest_saved_step == job.outcome.last_step


@pytest.mark.slow
def test_a_segment_begins_with_the_nodes_that_are_free_and_comes_to_the_same_weights(
    own_slurm: SlurmCluster, tmp_path: Path
) -> None:
    own_slurm.submit("sleep 600", "--nodelist=n2", "--exclusive")
    job = Job(tmp_path, min_nodes=1)
    with job.launch() as launched:
        follow(launched)
    assert job.outcome is not None and (job.outcome.outcome, job.outcome.world_size) == ("completed", 1)
    alone = job.order.segment.model_copy(update={"fence": job.fence + 1, "scratch": str(tmp_path / "alone")})
    train_to_end(alone, job.store)
    one, other = (hash_weights(job.store, checkpoint_at(job.store, 20, fence)) for fence in (job.fence, alone.fence))
    assert one == other


@pytest.mark.slow
def test_a_run_over_a_bucket_is_trained_and_evaluated_by_nodes_that_share_nothing_else(
    own_slurm: SlurmCluster,
    s3_endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prefect_server: dict[str, str],
) -> None:
    use_s3(monkeypatch, s3_endpoint)
    make_bucket(s3_endpoint)
    source = write_parquet(tmp_path / "data.parquet", text_columns(200))
    configuration = write_tiny_configuration(tmp_path, "over-a-bucket", f"s3://{BUCKET}/{tmp_path.name}", source)
    settings = {
        "scratch": tmp_path / "scratch",
        "cluster__kind": "slurm",
        "cluster__nodes": 2,
        "cluster__sbatch": f'["--output={tmp_path}/slurm-%j.out"]',
    }
    trained = Runner(configuration, settings, own_environment(prefect_server)).call("run")
    assert trained.returncode == 0, trained.stdout + trained.stderr
    assert "step     4 of 4 in 1 segment, 0 steps lost" in trained.stdout
    assert len(list((tmp_path / "scratch/runs/over-a-bucket").glob("*/*"))) == 0


@pytest.mark.slow
def test_where_nothing_can_be_started_on_a_node_the_end_names_what_slurm_printed(
    own_slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path)
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with job.launch() as launched:
        follow(launched)
        said = launched.describe_end() or ""
    assert said.startswith("Slurm reports FAILED, NonZeroExitCode; what it printed is in ")
    assert "/no/such/python" in Path(said.rpartition(" ")[2]).read_text()


@pytest.mark.slow
def test_a_job_is_submitted_once_the_controller_answers(own_slurm: SlurmCluster, tmp_path: Path) -> None:
    job = Job(tmp_path)
    own_slurm.stop_controller()
    start = threading.Timer(12, own_slurm.start_controller)  # sbatch gives up after nine seconds
    start.start()
    try:
        with job.launch() as launched:
            follow(launched)
    finally:
        start.join()
    assert job.outcome is not None and job.outcome.outcome == "completed"
