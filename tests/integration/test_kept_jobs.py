"""A Slurm job whose segment was lost serves the next one, with the nodes that are left; and a run grows again."""

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.runs.segments import find_outcome
from tasks.cluster.launchers import find_kept_job, require_acceptable_job
from tasks.cluster.slurm.job import SlurmJob
from tasks.configuration.cluster import ClusterConfig
from tasks.preemption.signals import StopRequest
from tasks.supervision.hang import HangWatch
from tasks.supervision.watch import supervise
from tests.helpers.commands import RUN_SECONDS, Runner, processes_mentioning, wait_until
from tests.helpers.fault_plans import FaultPlan, Moment, read_fired
from tests.helpers.leased_segments import ENDLESS, RUN, LeasedSegment, follow, follow_until_it_trains
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.slurm_cluster import SlurmCluster
from tests.helpers.tiny_runs import write_tiny_configuration

KEEP_SECONDS = 120.0
NO_PLACE = Moment("rank", "open", "stacks-", rank=1)


class Job(LeasedSegment):
    """An endless segment of two nodes, whose job is kept when it is lost; `cluster` are more settings."""

    def __init__(self, folder: Path, keep_seconds: float = KEEP_SECONDS, **cluster: Any) -> None:
        super().__init__(folder, ClusterConfig(kind="slurm", nodes=2, **cluster), ENDLESS, grace_seconds=10)
        self.order = self.order.model_copy(update={"keep_seconds": keep_seconds})

    def launch(self) -> SlurmJob:
        job = self.make_job()
        assert isinstance(job, SlurmJob)
        return job

    def find_kept(self) -> list[str] | None:
        """The nodes that go on with the next segment."""
        order = self.order
        found = find_kept_job(order.cluster, order.segment.train, self.store, RUN, self.fence)
        return None if found is None else found.nodes


def is_over(slurm: SlurmCluster) -> Callable[[], bool]:
    return lambda: slurm.call("squeue", "--noheader") == ""


def running_jobs(slurm: SlurmCluster) -> list[str]:
    return slurm.call("squeue", "--noheader", "--states=RUNNING", "--format=%A").split()


def make_runner(folder: Path, prefect_server: dict[str, str], **settings: object) -> Runner:
    """Of the run `kept` on both nodes."""
    source = write_parquet(folder / "data.parquet", text_columns(200))
    configuration = write_tiny_configuration(folder, "kept", folder / "store", source)
    on_slurm = {
        "store": folder / "store",
        "cluster__kind": "slurm",
        "cluster__nodes": 2,
        "cluster__sbatch": f'["--output={folder}/slurm-%j.out"]',
    }
    environment = {**prefect_server, **os.environ, "PREFECT_API_URL": prefect_server["PREFECT_API_URL"]}
    return Runner(configuration, {**on_slurm, "run": "kept", **settings}, environment)


@pytest.mark.slow
def test_a_run_whose_rank_is_killed_goes_on_in_the_same_segment(
    own_slurm: SlurmCluster, tmp_path: Path, prefect_server: dict[str, str]
) -> None:
    runner = make_runner(tmp_path, prefect_server)
    with FaultPlan().kill_at_step(step=3, rank=1).injected(runner, tmp_path / "faults"):
        ran = runner.call("run")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(read_fired(tmp_path / "faults")) == 1
    (segment,) = runner.status()["segments"]
    assert (segment["outcome"], segment["cause"]) == ("completed", "")
    assert (segment["views"][0]["lost"], segment["views"][0]["causes"]) == ([1], ["SIGKILL"])
    assert processes_mentioning(str(tmp_path / "store")) == []


@pytest.mark.slow
def test_a_run_whose_rank_fails_goes_on_in_the_same_job_and_its_cause_names_rank_and_node(
    own_slurm: SlurmCluster, tmp_path: Path, prefect_server: dict[str, str]
) -> None:
    runner = make_runner(tmp_path, prefect_server)
    with FaultPlan().disk_full(NO_PLACE, times=1).injected(runner, tmp_path / "faults"):
        ran = runner.call("run")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(read_fired(tmp_path / "faults")) == 1
    words = "found a full disk: OSError: [Errno 28] No space left on device"
    first, second = runner.status()["segments"]
    assert (first["outcome"] in ("lost", "failed"), second["outcome"]) == (True, "completed")
    said = rf"(no outcome recorded\. )?Rank 1 \(process \d+ on n[12]\) {re.escape(words)}"
    assert re.match(said, first["cause"]), first["cause"]
    assert "Rank 0" not in first["cause"]
    assert re.search(rf"Segment ended: [^.]*{said}", ran.stdout + ran.stderr)
    assert len(re.findall(r"Waiting up to 300 s for the next one", "".join(read_outputs(tmp_path)))) == 2
    assert processes_mentioning(str(tmp_path / "store")) == []


@pytest.mark.slow
def test_what_a_rank_could_not_put_is_put_by_its_node(
    own_slurm: SlurmCluster, tmp_path: Path, prefect_server: dict[str, str]
) -> None:
    runner = make_runner(tmp_path, prefect_server)
    not_taken = FaultPlan().failing(Moment("rank", "link", "segments/N/outcome.json"), "EIO", times=None)
    with not_taken.injected(runner, tmp_path / "faults"):
        ran = runner.call("run")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(read_fired(tmp_path / "faults")) > 0
    assert [segment["outcome"] for segment in runner.status()["segments"]] == ["completed"]


@pytest.mark.slow
def test_nodes_that_wait_serve_the_next_command_where_theirs_was_killed(
    own_slurm: SlurmCluster, tmp_path: Path, prefect_server: dict[str, str]
) -> None:
    runner = make_runner(tmp_path, prefect_server)
    plan = FaultPlan().disk_full(NO_PLACE, times=1).kill(Moment("command", "link", "segment began", nth=2))
    with plan.injected(runner, tmp_path / "faults"):
        assert runner.call("run").returncode < 0
    assert len(read_fired(tmp_path / "faults")) == 2
    ran = runner.call("run")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    first, second = runner.status()["segments"]
    assert first["outcome"] in ("lost", "failed")
    assert (second["outcome"], second["world_size"]) == ("completed", 2)
    assert len(read_outputs(tmp_path)) == 2  # a file for each job: that of both segments, and the evaluation's
    assert wait_until(is_over(own_slurm))


@pytest.mark.slow
def test_a_run_on_one_node_goes_on_with_both_and_ends_as_on_one_machine(
    own_slurm: SlurmCluster, tmp_path: Path, prefect_server: dict[str, str]
) -> None:
    blocking = own_slurm.submit("sleep 600", "--nodelist=n2", "--exclusive")
    own_slurm.wait_for_job(blocking, "RUNNING")
    longer = {"train__steps": 1500, "checkpoint__every_steps": 500}
    growing = make_runner(tmp_path, prefect_server, cluster__min_nodes=1, cluster__grow_seconds=10, **longer)
    command = growing.start()
    assert wait_until(lambda: len(running_jobs(own_slurm)) == 2, command)
    own_slurm.call("scancel", str(blocking))
    assert command.wait(RUN_SECONDS) == 0, growing.log.read_text()
    segments = growing.status()["segments"]
    assert [(each["outcome"], each["world_size"]) for each in segments] == [("preempted", 1), ("completed", 2)]
    on_this_machine = {"store": tmp_path / "alone", "cluster__kind": "local", "cluster__nodes": 1}
    alone = make_runner(tmp_path, prefect_server, **on_this_machine, **longer)
    alone.run()
    one, other = (runner.status()["promoted"]["weights_sha256"] for runner in (growing, alone))
    assert one == other


def read_outputs(folder: Path) -> list[str]:
    """What each job printed of its own."""
    return [path.read_text() for path in sorted(folder.glob("slurm-*.out"))]


@pytest.mark.slow
def test_when_a_node_dies_the_others_wait_in_the_job_and_are_enough_or_are_given_back(
    own_slurm: SlurmCluster, tmp_path: Path
) -> None:
    enough, too_few = Job(tmp_path / "enough", min_nodes=1), Job(tmp_path / "few")
    for job, kept in ((enough, ["n1"]), (too_few, None)):
        with job.launch() as launched:
            follow_until_it_trains(launched)
            own_slurm.kill_node("n2")
            follow(launched)
            assert launched.describe_end() == "Slurm reports NodeDown: n2 (Not responding)"
        assert own_slurm.read_job(launched.number)["JobState"] == "RUNNING"
        assert job.find_kept() == kept
        require_acceptable_job(job.order.cluster, job.order.segment.train, 30)  # it would wait for the node
        if kept is not None:
            launched.release()
        assert wait_until(is_over(own_slurm))
        own_slurm.start_node("n2")


@pytest.mark.slow
def test_when_the_node_of_the_batch_script_dies_the_others_wait_or_the_job_is_given_back(
    own_slurm: SlurmCluster, tmp_path: Path
) -> None:
    job = Job(tmp_path, min_nodes=1)
    with job.launch() as launched:
        follow_until_it_trains(launched)
        node = own_slurm.read_job(launched.number)["BatchHost"]
        own_slurm.kill_node(node)
        follow(launched)
        assert node in (launched.describe_end() or "")
    # Its `srun` may have had the time to kill what runs on the others.
    assert job.find_kept() in ([name for name in own_slurm.nodes if name != node], None)
    launched.release()
    assert wait_until(is_over(own_slurm))


@pytest.mark.slow
def test_ranks_that_are_killed_for_hanging_leave_their_nodes_to_the_next_segment(
    own_slurm: SlurmCluster, tmp_path: Path
) -> None:
    job = Job(tmp_path)
    with job.launch() as launched:
        follow_until_it_trains(launched)
        launched.kill()
        follow(launched)
    assert job.find_kept() == ["n1", "n2"]
    assert processes_mentioning(str(tmp_path / "segment")) == []
    launched.release()
    assert wait_until(is_over(own_slurm))


@pytest.mark.slow
def test_nodes_for_which_nothing_comes_give_their_job_up(own_slurm: SlurmCluster, tmp_path: Path) -> None:
    job = Job(tmp_path, keep_seconds=5)
    with job.launch() as launched:
        follow_until_it_trains(launched)
        launched.kill()
        follow(launched)
    assert wait_until(is_over(own_slurm))
    assert own_slurm.read_job(launched.number)["JobState"] in ("COMPLETED", "CANCELLED")
    assert job.find_kept() is None


@pytest.mark.slow
def test_a_segment_with_too_few_nodes_saves_and_leaves_when_more_are_idle(
    own_slurm: SlurmCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocking = own_slurm.submit("sleep 600", "--nodelist=n2", "--exclusive")
    own_slurm.wait_for_job(blocking, "RUNNING")
    job = Job(tmp_path, min_nodes=1, grow_seconds=5)
    caplog.set_level("INFO")
    with job.launch() as launched:
        follow_until_it_trains(launched)
        following = threading.Thread(target=supervise, args=(launched, HangWatch(600), StopRequest(), lambda _: None))
        following.start()
        own_slurm.call("scancel", str(blocking))
        following.join()
    outcome = find_outcome(job.store, RUN, job.fence)
    assert outcome is not None and (outcome.outcome, outcome.world_size) == ("preempted", 1)
    assert "has 1 node, and 1 more is idle in partition main: the ranks are asked to save and leave" in caplog.text
