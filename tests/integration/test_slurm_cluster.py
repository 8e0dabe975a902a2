"""The helper that starts a real Slurm keeps what it promises."""

import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.helpers import slurm_cluster
from tests.helpers.commands import ROOT, processes_mentioning, wait_until
from tests.helpers.prefect_server import find_free_port
from tests.helpers.slurm_cluster import (
    PREEMPTING_PARTITION,
    SlurmCluster,
    find_processes,
    find_reason_to_skip,
    running_slurm,
)

WAITS_FOREVER = """
import sys, time
from pathlib import Path
from tests.helpers.slurm_cluster import running_slurm

with running_slurm(Path(sys.argv[1])) as slurm:
    slurm.wait_for_job(slurm.submit("srun sleep 600", "--nodes=2"), "RUNNING")
    print("runs", flush=True)
    time.sleep(600)  # until it is killed
"""
# Says in a file of its node what it is told, and ends half a second after it was told to.
LISTENS = """
srun bash -c '
    trap "echo TERM >> told.$SLURMD_NODENAME; sleep 0.5; exit 0" TERM
    echo runs >> told.$SLURMD_NODENAME
    while true; do sleep 0.1; done
'
"""
BOTH_NODES = ("--nodes=2", "--ntasks-per-node=1")


def test_a_job_of_two_nodes_runs_on_both(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = "srun --label printenv SLURMD_NODENAME SLURM_NODEID SLURM_JOB_NODELIST SLURM_RESTART_COUNT"
    job = slurm.submit(script, *BOTH_NODES, "--output=said", folder=tmp_path)
    slurm.wait_for_job(job, "FAILED")  # the last of these is not set: nothing was restarted
    said = sorted((tmp_path / "said").read_text().splitlines())
    told = [line for line in said if line[:3] in ("0: ", "1: ")]
    assert told == ["0: 0", "0: n1", "0: n[1-2]", "1: 1", "1: n2", "1: n[1-2]"]


def test_a_job_whose_node_dies_is_ended_and_the_node_comes_back(slurm: SlurmCluster) -> None:
    job = _submit_sleepers(slurm, "--no-requeue")
    slurm.kill_node("n2")
    assert slurm.find_job_processes("n2") == []
    assert "sleep" in _names(slurm.find_job_processes("n1"))
    slurm.wait_for_job(job, "NODE_FAIL")
    assert slurm.read_node("n2")["State"].startswith("DOWN")
    slurm.start_node("n2")
    slurm.wait_for_job(slurm.submit("srun true", *BOTH_NODES), "COMPLETED")


def test_a_job_goes_on_while_the_controller_restarts(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = slurm.submit("until test -e enough; do sleep 0.1; done; exit 7", folder=tmp_path)
    slurm.wait_for_job(job, "RUNNING")
    slurm.stop_controller()
    assert "slurm_script" in _names(slurm.find_job_processes("n1"))
    slurm.start_controller()
    assert slurm.read_job(job)["JobState"] == "RUNNING"
    (tmp_path / "enough").touch()
    assert slurm.wait_for_job(job, "FAILED")["ExitCode"] == "7:0"


@pytest.mark.parametrize(("mode", "state"), [("REQUEUE", "PENDING"), ("CANCEL", "PREEMPTED")])
def test_a_job_makes_way_for_a_preempting_one(slurm: SlurmCluster, tmp_path: Path, mode: str, state: str) -> None:
    slurm.set_preemption(mode, grace_seconds=0)
    job, urgent = _preempt(slurm, tmp_path)
    assert _read_told(slurm, tmp_path) == {"runs", "TERM"}
    assert slurm.read_job(job)["JobState"] == state
    slurm.call("scancel", str(urgent))
    if mode == "REQUEUE":
        assert slurm.wait_for_job(job, "RUNNING")["Restarts"] == "1"


def test_a_job_that_ends_within_the_grace_of_its_preemption_has_ended_by_itself(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    slurm.set_preemption("REQUEUE", grace_seconds=60)
    job, _ = _preempt(slurm, tmp_path)
    assert _read_told(slurm, tmp_path) == {"runs", "TERM"}
    assert slurm.read_job(job)["JobState"] == "COMPLETED"


def test_nothing_is_left_of_a_cluster_whose_block_fails(slurm: SlurmCluster, tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="of the test"), running_slurm(tmp_path) as second:
        _submit_sleepers(second)
        family = find_processes(second.settings)
        raise KeyError("of the test")
    assert find_processes(second.settings) == []
    _, living = psutil.wait_procs(family, timeout=10)  # dead they are; whoever is their parent now buries them
    assert living == []
    assert processes_mentioning(str(tmp_path)) == []
    assert "is UP" in slurm.call("scontrol", "ping")  # the other one is still there


def test_nothing_is_left_of_a_cluster_whose_process_was_killed(tmp_path: Path) -> None:
    if reason := find_reason_to_skip():
        pytest.skip(reason)
    settings = tmp_path / "slurm.conf"
    command = [sys.executable, "-c", WAITS_FOREVER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        said = owner.stdout.readline()
        # A job runs from the moment on at which Slurm starts its script.
        wanted = {"munged", "slurmctld", "slurmd", "slurmstepd", "srun"}
        wait_until(lambda: wanted <= {name.partition(":")[0] for name in _names(find_processes(settings))})
        owner.kill()
    assert said == "runs\n"
    assert wait_until(lambda: not find_processes(settings) and not processes_mentioning(str(settings)))


def test_a_cluster_that_comes_up_by_half_says_why_and_is_gone(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = int(slurm.read_node("n1")["Port"])
    ports = iter([find_free_port(), taken, taken])
    monkeypatch.setattr(slurm_cluster, "find_free_port", lambda: next(ports))
    expected = re.compile(r"not as expected: n[12] ended with exit code 1\n.*\nslurmd-n1\.log:\n", re.DOTALL)
    with pytest.raises(RuntimeError, match=expected), running_slurm(tmp_path):
        pass
    assert find_processes(tmp_path / "slurm.conf") == []


def _submit_sleepers(slurm: SlurmCluster, *options: str) -> int:
    """A job that sleeps on both nodes, once it does."""
    job = slurm.submit("srun sleep 600", *BOTH_NODES, *options)
    asleep = lambda: all("sleep" in _names(slurm.find_job_processes(node)) for node in slurm.nodes)  # noqa: E731
    slurm.wait_until("both nodes sleep", asleep)
    return job


def _names(processes: list[psutil.Process]) -> set[str]:
    names = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            names.add(process.name())
    return names


def _preempt(slurm: SlurmCluster, folder: Path) -> tuple[int, int]:
    """A job and the one that has its nodes now."""
    job = slurm.submit(LISTENS, *BOTH_NODES, "--exclusive", folder=folder)
    slurm.wait_until("both tasks run", lambda: len(list(folder.glob("told.*"))) == 2)
    urgent = slurm.submit("sleep 600", *BOTH_NODES, "--exclusive", f"--partition={PREEMPTING_PARTITION}")
    slurm.wait_for_job(urgent, "RUNNING")
    return job, urgent


def _read_told(slurm: SlurmCluster, folder: Path) -> set[str]:
    """What the task of every node was told."""
    told = [set((folder / f"told.{node}").read_text().split()) for node in slurm.nodes]
    assert told[0] == told[1]
    return told[0]
