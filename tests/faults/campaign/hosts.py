"""A run over three hosts with addresses of their own, in a bucket, and all that happens to a host and to its link.

Invariant: rank 0 stands still while something happens to a host, so it happens in the midst of training whatever the
machine's speed; and a step later, so that what a host was cut from has gone on before the host is back.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from storage.logs import LOG_NAME
from tests.faults.campaign.clusters import is_stopped, job_of
from tests.faults.campaign.network import new_bucket_run, running_server
from tests.faults.campaign.results import Attempt
from tests.faults.campaign.site import STEPS, Site, start_logged
from tests.helpers import hosts as hosts_helper
from tests.helpers import slurm_cluster
from tests.helpers.commands import kill_everything, wait_until
from tests.helpers.fault_plans import FaultPlan, read_fired
from tests.helpers.faulty_proxy import running_proxy
from tests.helpers.hosts import Hosts, Way, running_hosts
from tests.helpers.slurm_cluster import KILL_WAIT_SECONDS, SlurmCluster, running_slurm
from training.agents.rank import TITLE

NAMES = ("h1", "h2", "h3")
SETTINGS: dict[str, Any] = {
    "cluster__kind": "slurm",
    "cluster__nodes": len(NAMES),
    "cluster__min_nodes": len(NAMES) - 1,
    "train__ranks": 1,
    "segment__hang_seconds": 60,
    "segment__lost_seconds": 15,
    "segment__grace_seconds": 10,
    "retry__attempts": 3 * STEPS,
}
# A store that does not answer is asked again after so long, 10 and 60 s if nothing is said.
STORE_SECONDS = 5
SLOW_KILOBITS = 1000  # a second
COMMAND_SECONDS = 600
# A host that comes back is told then that its job is over: the job has so long from SIGTERM to SIGKILL, and its srun so
# long again for its step.
SLURM_ENDS_SECONDS = 2 * KILL_WAIT_SECONDS + 10
POLL_SECONDS = 0.5
JOB_OUTPUT = "hosts-%j.out"


@dataclass(frozen=True)
class HostFault:
    """What happens to the host of a rank, and what the cause of the segment that is lost to it says.

    Without a `cause` no segment is lost: the fault lasts for some steps, and until the host says the `symptom`. Else
    it lasts until the run has made a new step without the host, or where Slurm cannot know that the host is of no use,
    `until_noticed`.
    """

    name: str
    happen: Callable[["HostCluster", str], None]
    mend: Callable[["HostCluster", str], None] = lambda cluster, host: cluster.hosts.mend(host)
    rank: int = 1
    steps: int = 1
    cause: str | None = "{host}"
    symptom: str = ""
    until_noticed: bool = False


@dataclass(frozen=True)
class HostCluster:
    """Hosts, the cluster whose nodes they are, and the address of the store that all of them reach."""

    hosts: Hosts
    slurm: SlurmCluster
    endpoint: str


def lose_power(cluster: HostCluster, host: str) -> None:
    """No process is left, and nobody is told."""
    cluster.hosts.cut(host)
    cluster.slurm.kill_node(host)


def get_power_back(cluster: HostCluster, host: str) -> None:
    cluster.hosts.mend(host)
    cluster.slurm.start_node(host)


def stand_still(cluster: HostCluster, host: str) -> None:
    """A machine that is frozen, its processes with it, to come back when all others have gone on."""
    cluster.hosts.cut(host)
    cluster.hosts.stop(host)


def come_back(cluster: HostCluster, host: str) -> None:
    cluster.hosts.go_on(host)
    cluster.hosts.mend(host)


def cut_from_store(cluster: HostCluster, host: str) -> None:
    cluster.hosts.cut_from(host, cluster.hosts.store_address)


def cut_from_hosts(cluster: HostCluster, host: str) -> None:
    """Slurm and the store hear of it as before; what it has to say to other ranks is lost."""
    for name in {*NAMES} - {host}:
        cluster.hosts.cut_from(host, cluster.hosts.address_of(name))


HOST_FAULTS = (
    HostFault("loses its power", lose_power, get_power_back),
    HostFault("is cut off", lambda cluster, host: cluster.hosts.cut(host)),
    HostFault("is not heard any more", lambda cluster, host: cluster.hosts.cut(host, Way.FROM_HOST)),
    HostFault("hears nothing any more", lambda cluster, host: cluster.hosts.cut(host, Way.TO_HOST)),
    HostFault("has a slow link", lambda cluster, host: cluster.hosts.slow(host, SLOW_KILOBITS), steps=4, cause=None),
    HostFault("is cut off from the store alone", cut_from_store, steps=4, cause=None, symptom="attempt 1 of"),
    HostFault("is cut off from the other hosts alone", cut_from_hosts, cause="The network between", until_noticed=True),
    HostFault("that has rank 0 is cut off", lambda cluster, host: cluster.hosts.cut(host), rank=0),
    HostFault("stands still, and comes back as a zombie", stand_still, come_back),
)


@contextmanager
def running_cluster(site: Site) -> Iterator[HostCluster]:
    """All of it, on this machine, as long as the block lasts. Raises `RuntimeError` where there can be none."""
    reason = hosts_helper.find_reason_to_skip() or slurm_cluster.find_reason_to_skip()
    if reason is not None:
        raise RuntimeError(reason)
    folder = site.new_folder("hosts")
    folder.mkdir(parents=True)
    with (
        running_hosts(NAMES) as hosts,
        running_server(site) as server,
        running_proxy(server, hosts.store_address) as proxy,
        running_slurm(folder, hosts=hosts) as slurm,
    ):
        yield HostCluster(hosts, slurm, proxy.endpoint)


def everything_happens(site: Site, cluster: HostCluster) -> Attempt:
    """One after the other to the hosts of one run."""
    run = _HostRun(site, cluster)
    try:
        for number in range(len(HOST_FAULTS)):
            run.meet(number)
        code = run.command.wait(COMMAND_SECONDS)
    finally:
        kill_everything(run.command)
    problem = f"exit code {code}: {run.said()[-800:]}" if code else site.find_difference(run.runner)
    problem = problem or run.find_left_behind() or run.find_unexpected()
    note = "; ".join(map(str, run.met))
    return Attempt(
        len(HOST_FAULTS), len(run.met), "bad" if problem else "equal", f"{problem}; {note}" if problem else note
    )


@dataclass
class _Met:
    """A fault that was caused. Seconds from the fault on: `noticed`, until the lost segment had its cause in the log.

    `stepped`: until the run had taken the steps that the fault lasts. `gone`, from the host's return on: until nothing
    ran there any more of what was cut off.
    """

    fault: HostFault
    host: str
    cut_off: list[psutil.Process]
    began: float
    noticed: float = 0.0
    stepped: float = 0.0
    returned: float = 0.0
    gone: float | None = None

    def look(self) -> None:
        """Whether what was cut off has gone by now; to be asked again and again from the host's return on."""
        if self.returned and self.gone is None and not any(one.is_running() for one in self.cut_off):
            self.gone = time.monotonic() - self.returned

    def __str__(self) -> str:
        if self.fault.cause is None:
            noticed = f", noticed {self.noticed:.0f} s" if self.fault.symptom else ""
            return f"{self.host} {self.fault.name}: {self.fault.steps} steps in {self.stepped:.1f} s{noticed}"
        gone = "never gone" if self.gone is None else f"gone {self.gone:.0f} s"
        return f"{self.host} {self.fault.name}: noticed {self.noticed:.0f} s, next step {self.stepped:.0f} s, {gone}"


class _HostRun:
    """A run whose rank 0 stands still where each fault happens, and again when the run has gone on from it."""

    def __init__(self, site: Site, cluster: HostCluster) -> None:
        self._cluster = cluster
        self.met: list[_Met] = []
        self._log, self._folder = site.folder / "hosts.log", site.new_folder("hosts")
        profile = site.folder / "hosts.aws"
        profile.write_text(f"[default]\nread_timeout = {STORE_SECONDS}\nconnect_timeout = {STORE_SECONDS}\n")
        output = f'["--output={site.folder}/{JOB_OUTPUT}"]'
        self.runner = new_bucket_run(site, cluster.endpoint, **SETTINGS, cluster__sbatch=output)
        self.runner.environment = {
            **self.runner.environment,
            "AWS_CONFIG_FILE": str(profile),
            "SLURM_CONF": cluster.slurm.environment["SLURM_CONF"],
        }
        plan = FaultPlan()
        for number, fault in enumerate(HOST_FAULTS):
            plan = plan.hang(rank=0, step=_step_of(number)).hang(rank=0, step=_step_of(number) + fault.steps)
        # Else all steps of a fault may be over before the host has asked the store for anything. Last: faults are found
        # by their number.
        with plan.slow(rank=0).injected(self.runner, self._folder):
            self.command = start_logged(self.runner, self._log)

    def meet(self, number: int) -> None:
        """Let a fault happen, and mend it when the run has gone on from it. Rank 0 stands still before and after."""
        fault, cluster, ends = HOST_FAULTS[number], self._cluster, self._count_ends()
        rank = self._wait_for_still_rank(2 * number)
        host = self._find_host(fault.rank, job_of(rank))
        cut_off, said = cluster.slurm.find_job_processes(host), self._count_symptoms(fault, host)
        fault.happen(cluster, host)
        met = _Met(fault, host, cut_off, time.monotonic())
        os.kill(rank, signal.SIGCONT)
        if fault.cause is not None:
            self._wait(lambda: self._count_ends() > ends)
            met.noticed = time.monotonic() - met.began
        if fault.until_noticed:
            self._mend(met)
        next_rank = self._wait_for_still_rank(2 * number + 1)
        met.stepped = self._read_marks(2 * number + 1)[0]["at_ns"] / 1e9 - met.began
        if fault.symptom:
            self._wait(lambda: self._count_symptoms(fault, host) > said)
            met.noticed = time.monotonic() - met.began
        if not fault.until_noticed:
            self._mend(met)
        os.kill(next_rank, signal.SIGCONT)
        self.met.append(met)

    def _mend(self, met: _Met) -> None:
        met.fault.mend(self._cluster, met.host)
        met.returned = time.monotonic()

    def said(self) -> str:
        return self._log.read_text()

    def find_unexpected(self) -> str | None:
        """Where a segment was lost to no fault, or its cause does not say to which, in words."""
        expected = [met.fault.cause.format(host=met.host) for met in self.met if met.fault.cause is not None]
        causes = [segment["cause"] for segment in self.runner.status()["segments"]][:-1]
        are_told = all(words in cause for words, cause in zip(expected, causes, strict=False))
        return None if are_told and len(causes) == len(expected) else f"causes {causes}, expected {expected}"

    def find_left_behind(self) -> str | None:
        """What runs on the hosts though the run is complete and Slurm has had the time to end all of it, in words."""
        self._cluster.slurm.wait_until_idle()
        deadline = time.monotonic() + SLURM_ENDS_SECONDS
        while (left := self._find_job_processes()) and time.monotonic() < deadline:
            self._look()
            time.sleep(POLL_SECONDS)  # Slurm calls nobody back
        self._look()
        return f"processes are left: {left}" if left else None

    def _find_job_processes(self) -> dict[str, list[psutil.Process]]:
        return {name: found for name in NAMES if (found := self._cluster.slurm.find_job_processes(name))}

    def _count_ends(self) -> int:
        return self.said().count("Segment ended")

    def _count_symptoms(self, fault: HostFault, host: str) -> int:
        """In what the host's ranks say; and what it says of its own reports, which are due every few seconds."""
        logs = Path(self.runner.settings["scratch"]).glob(f"runs/*/*/{host}/{LOG_NAME}")
        of_ranks = sum(log.read_text(errors="replace").count(fault.symptom) for log in logs)
        printed = [line for job in self._log.parent.glob(JOB_OUTPUT.replace("%j", "*")) for line in _read_lines(job)]
        return of_ranks + sum(fault.symptom in line and f"/{host}.json" in line for line in printed)

    def _wait_for_still_rank(self, fault: int) -> int:
        self._wait(lambda: bool(self._find_still(fault)))
        return self._find_still(fault)[0]

    def _find_still(self, fault: int) -> list[int]:
        return [mark["pid"] for mark in self._read_marks(fault) if is_stopped(mark["pid"])]

    def _read_marks(self, fault: int) -> list[dict[str, Any]]:
        return [mark for mark in read_fired(self._folder) if mark["fault"] == fault]

    def _find_host(self, rank: int, job: int) -> str:
        """Where this rank of a job is; of an earlier job there may be one, too, on a host that is not free yet."""
        for name in NAMES:
            for process in self._cluster.slurm.find_job_processes(name):
                with suppress(psutil.NoSuchProcess):
                    if f"{TITLE} {rank} " in "".join(process.cmdline()) and job_of(process.pid) == job:
                        return name
        raise RuntimeError(f"rank {rank} is on no host: {self.said()[-800:]}")

    def _wait(self, condition: Callable[[], bool]) -> None:
        """Until it holds. Raises `RuntimeError` if the command ends before."""

        def holds() -> bool:
            self._look()
            return condition()

        if not wait_until(holds, self.command):
            raise RuntimeError(f"the command ended too early: {self.said()[-800:]}")

    def _look(self) -> None:
        for met in self.met:
            met.look()


def _read_lines(path: Path) -> list[str]:
    """Of a file that is written meanwhile."""
    return path.read_text(errors="replace").splitlines()


def _step_of(number: int) -> int:
    """Where fault `number` happens: they share the run's steps alike."""
    return (number + 1) * STEPS // (len(HOST_FAULTS) + 1)
