"""A run over two nodes of a real Slurm, and everything that a cluster does to a job.

Invariant: rank 0 stands still while something happens to its job, so it happens in the midst of training whatever the
machine's speed; what a job loses is trained again, and the weights are those of the run that nothing disturbed.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.faults.campaign.results import Attempt
from tests.faults.campaign.site import STEPS, Site, start_logged
from tests.helpers.commands import Runner, kill_everything, wait_until
from tests.helpers.fault_plans import FaultPlan, read_fired
from tests.helpers.slurm_cluster import PREEMPTING_PARTITION, SlurmCluster

SETTINGS: dict[str, Any] = {"cluster__kind": "slurm", "cluster__nodes": 2, "train__ranks": 1}
# What may come to a rank that stands still is kept for it: bits of ShdPnd in /proc/PID/status, proc_pid_status(5).
TERM_BIT = 1 << (signal.SIGTERM - 1)
OVER = ("CANCELLED", "COMPLETED", "FAILED", "NODE_FAIL", "PREEMPTED", "TIMEOUT")
# Slurm's part in the cause of a segment that a job has lost.
TOLD = ("Slurm gave", "Slurm queued the job again", "Slurm reports NodeDown")
COMMAND_SECONDS = 600

Happening = Callable[[SlurmCluster, int, int], None]  # the cluster, the job, the process of rank 0


def other_job_takes_the_nodes(cluster: SlurmCluster, _job: int, rank: int) -> None:
    """One of a partition with a higher priority: Slurm asks ours to leave, and would queue it again."""
    cluster.submit("sleep 2", f"--partition={PREEMPTING_PARTITION}", "--nodes=2", "--exclusive")
    _go_on_when_asked_to_stop(rank)


def job_is_queued_again(cluster: SlurmCluster, job: int, rank: int) -> None:
    """By whoever operates the cluster; Slurm asks nobody to leave then, and kills."""
    cluster.call("scontrol", "requeue", str(job))
    wait_until(lambda: not psutil.pid_exists(rank))


def node_dies(cluster: SlurmCluster, job: int, rank: int) -> None:
    """The one where rank 0 is; it comes back when Slurm has noticed."""
    node = psutil.Process(rank).environ()["SLURMD_NODENAME"]
    cluster.kill_node(node)
    cluster.wait_for_job(job, *OVER, "PENDING")
    cluster.start_node(node)


def controller_restarts(cluster: SlurmCluster, _job: int, rank: int) -> None:
    """The job runs on meanwhile, and ends as if nothing had been."""
    cluster.restart_controller()
    os.kill(rank, signal.SIGCONT)


HAPPENINGS: dict[str, Happening] = {
    "its nodes are taken for another job": other_job_takes_the_nodes,
    "it is queued again": job_is_queued_again,
    "a node dies": node_dies,
    "the controller restarts": controller_restarts,
}


def everything_happens(site: Site, cluster: SlurmCluster) -> Attempt:
    """One after the other to the jobs of one run."""
    runner = _new_run(site, "slurm", cluster)
    plan, folder = FaultPlan(), site.new_folder("slurm")
    for number in range(len(HAPPENINGS)):
        plan = plan.hang(rank=0, step=(number + 1) * STEPS // (len(HAPPENINGS) + 1))
    met = 0
    with plan.injected(runner, folder):
        command = start_logged(runner, site.folder / "slurm.log")
    try:
        for number, happen in enumerate(HAPPENINGS.values()):
            rank = wait_for_still_rank(folder, number, command)
            if rank is None:
                break
            happen(cluster, job_of(rank), rank)
            met += 1
        code = command.wait(COMMAND_SECONDS)
    finally:
        kill_everything(command)
    said = (site.folder / "slurm.log").read_text()
    problem = f"exit code {code}: {said[-800:]}" if code else site.find_difference(runner)
    problem = problem or _find_unexpected(runner, said)
    ends = ", ".join(segment["outcome"] for segment in runner.status()["segments"])
    return Attempt(len(HAPPENINGS), met, "bad" if problem else "equal", problem or f"segments: {ends}")


def command_dies_and_its_job_goes_on(site: Site, cluster: SlurmCluster) -> Attempt:
    """Whoever starts it again, on another machine, watches the same job: there never is a second one."""
    watched = _Watched(site, cluster, "watched")
    if watched.rank is None:
        return Attempt(1, 0, "bad", "the command ended before it was killed")
    kill_everything(watched.command)
    heir = watched.start_heir()
    try:
        problem = watched.find_doubled()
        os.kill(watched.rank, signal.SIGCONT)
        code = heir.wait(COMMAND_SECONDS)
    finally:
        kill_everything(heir)
    problem = problem or (f"exit code {code}: {watched.said()}" if code else watched.find_difference())
    return Attempt(1, 1, "bad" if problem else "equal", problem or "one job, one segment")


def command_stands_still_and_comes_back(site: Site, cluster: SlurmCluster) -> Attempt:
    """Its machine slept, and another one watches the job meanwhile. It ends neither the job nor the other's work."""
    watched = _Watched(site, cluster, "asleep")
    if watched.rank is None:
        return Attempt(1, 0, "bad", "the command ended before it stood still")
    asleep = [watched.command.pid, *(one.pid for one in psutil.Process(watched.command.pid).children(recursive=True))]
    _send(asleep, signal.SIGSTOP)
    heir = watched.start_heir()
    try:
        problem = watched.find_doubled()
        _send([*asleep, watched.rank], signal.SIGCONT)
        codes = [one.wait(COMMAND_SECONDS) for one in (watched.command, heir)]
    finally:
        kill_everything(watched.command)
        kill_everything(heir)
    # Both watch, and one of them finds that the other has gone on: which one is a race that either may win.
    are_told = sorted(codes) == [0, 2] and "Traceback" not in watched.said()
    problem = problem or (None if are_told else f"exit codes {codes}: {watched.said()}") or watched.find_difference()
    return Attempt(1, 1, "bad" if problem else "equal", problem or "one job, one segment; the other one is told")


class _Watched:
    """A run whose rank 0 stands still in a job, to be watched by a command and by another one after it."""

    def __init__(self, site: Site, cluster: SlurmCluster, name: str) -> None:
        self._site, self._cluster = site, cluster
        self._runner, self._log = _new_run(site, name, cluster), site.folder / f"{name}.log"
        folder = site.new_folder(name)
        with FaultPlan().hang(rank=0, step=STEPS // 2).injected(self._runner, folder):
            self.command = start_logged(self._runner, self._log)
        self.rank = wait_for_still_rank(folder, 0, self.command)
        self._job = None if self.rank is None else job_of(self.rank)

    def start_heir(self) -> "subprocess.Popen[bytes]":
        """The same command on another machine, when it has begun to watch."""
        with FaultPlan().on_another_host().injected(self._runner, self._site.new_folder("elsewhere")):
            heir = start_logged(self._runner, self._log)
        wait_until(lambda: "it is watched again" in self.said(), heir)
        return heir

    def find_doubled(self) -> str | None:
        """Whether there is another job than the first one, in words."""
        jobs = self._cluster.call("squeue", "--noheader", "--format=%A").split()
        is_one = jobs == [str(self._job)] and "it is watched again" in self.said()
        return None if is_one else f"jobs {jobs}, expected {self._job}: {self.said()}"

    def find_difference(self) -> str | None:
        """As the site finds it, and whether it is one segment."""
        segments = len(self._runner.status()["segments"])
        return self._site.find_difference(self._runner) or (f"{segments} segments" if segments != 1 else None)

    def said(self) -> str:
        """The last words of both commands."""
        return self._log.read_text()[-3000:]


def _send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


def _find_unexpected(runner: Runner, said: str) -> str | None:
    """How the segments ended, if not as they should: the last one, with a controller that restarts, as if alone."""
    causes = [segment["cause"] for segment in runner.status()["segments"]]
    are_told = all(any(words in cause for words in TOLD) for cause in causes[:-1])
    return None if are_told and len(causes) == len(HAPPENINGS) else f"causes {causes}: {said[-800:]}"


def _new_run(site: Site, name: str, cluster: SlurmCluster) -> Runner:
    # --requeue, which is not asked for otherwise, and which a cluster's operators may insist on.
    sbatch = f'["--requeue", "--output={site.folder}/slurm-%j.out"]'
    runner = site.new_run(name, **SETTINGS, cluster__sbatch=sbatch)
    runner.environment = {**runner.environment, "SLURM_CONF": cluster.environment["SLURM_CONF"]}
    return runner


def wait_for_still_rank(folder: Path, fault: int, command: "subprocess.Popen[bytes]") -> int | None:
    """The process that this fault of the plan has stopped; None if the command ended before."""

    def find() -> list[int]:
        pids = [mark["pid"] for mark in read_fired(folder) if mark["fault"] == fault]
        return [pid for pid in pids if is_stopped(pid)]

    return find()[0] if wait_until(lambda: bool(find()), command) else None


def is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def job_of(rank: int) -> int:
    return int(psutil.Process(rank).environ()["SLURM_JOB_ID"])


def _go_on_when_asked_to_stop(rank: int) -> None:
    """Let the rank go on when a SIGTERM waits for it, so that it meets it at its next step; Slurm may have done so."""

    def is_asked() -> bool:
        try:
            status = Path(f"/proc/{rank}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True  # it went on, saved and left
        pending = next(line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd"))
        return bool(int(pending, 16) & TERM_BIT)

    wait_until(is_asked)
    with suppress(ProcessLookupError):
        os.kill(rank, signal.SIGCONT)
