"""All that happens to a host and to its link, in turn, to the hosts of one run.

Invariant: rank 0 stands still while something happens to a host, so it happens in the midst of training whatever the
machine's speed; and a step later, so that what a host was cut from has gone on before the host is back.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from storage.logs import LOG_NAME
from tests.faults.campaign.clusters import job_of
from tests.faults.campaign.host_runs import (
    COMMAND_SECONDS,
    HostCluster,
    HostRun,
    cut_from_hosts,
    get_power_back,
    lose_power,
)
from tests.faults.campaign.results import Attempt
from tests.faults.campaign.site import STEPS, Site
from tests.helpers.commands import kill_everything
from tests.helpers.fault_plans import FaultPlan
from tests.helpers.hosts import Way

SLOW_KILOBITS = 1000  # a second


@dataclass(frozen=True)
class HostFault:
    """What happens to the host of a rank, and what the cause of the segment that is lost to it says.

    Without a `cause` no segment is lost: the fault lasts for some steps, and until the host says the `symptom`. Else
    it lasts until the run has made a new step without the host, or where Slurm cannot know that the host is of no use,
    `until_noticed`.
    """

    name: str
    happen: Callable[[HostCluster, str], None]
    mend: Callable[[HostCluster, str], None] = lambda cluster, host: cluster.hosts.mend(host)
    rank: int = 1
    steps: int = 1
    cause: str | None = "{host}"
    symptom: str = ""
    until_noticed: bool = False


def stand_still(cluster: HostCluster, host: str) -> None:
    """A machine that is frozen, its processes with it, to come back when all others have gone on."""
    cluster.hosts.cut(host)
    cluster.hosts.stop(host)


def come_back(cluster: HostCluster, host: str) -> None:
    cluster.hosts.go_on(host)
    cluster.hosts.mend(host)


def cut_from_store(cluster: HostCluster, host: str) -> None:
    cluster.hosts.cut_from(host, cluster.hosts.store_address)


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


def everything_happens(site: Site, cluster: HostCluster) -> Attempt:
    """One after the other to the hosts of one run."""
    run = _DisturbedRun(site, cluster)
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


class _DisturbedRun(HostRun):
    """A run whose rank 0 stands still where each fault happens, and again when the run has gone on from it."""

    def __init__(self, site: Site, cluster: HostCluster) -> None:
        self.met: list[_Met] = []
        plan = FaultPlan()
        for number, fault in enumerate(HOST_FAULTS):
            plan = plan.hang(rank=0, step=_step_of(number)).hang(rank=0, step=_step_of(number) + fault.steps)
        # Else all steps of a fault may be over before the host has asked the store for anything. Last: faults are found
        # by their number.
        super().__init__(site, cluster, "hosts", plan.slow(rank=0))

    def meet(self, number: int) -> None:
        """Let a fault happen, and mend it when the run has gone on from it. Rank 0 stands still before and after."""
        fault, cluster, ends = HOST_FAULTS[number], self.cluster, self._count_ends()
        rank = self.wait_for_still_rank(2 * number)
        host = self.find_host(fault.rank, job_of(rank))
        cut_off, said = cluster.slurm.find_job_processes(host), self._count_symptoms(fault, host)
        fault.happen(cluster, host)
        met = _Met(fault, host, cut_off, time.monotonic())
        os.kill(rank, signal.SIGCONT)
        if fault.cause is not None:
            self.wait(lambda: self._count_ends() > ends)
            met.noticed = time.monotonic() - met.began
        if fault.until_noticed:
            self._mend(met)
        next_rank = self.wait_for_still_rank(2 * number + 1)
        met.stepped = self.read_marks(2 * number + 1)[0]["at_ns"] / 1e9 - met.began
        if fault.symptom:
            self.wait(lambda: self._count_symptoms(fault, host) > said)
            met.noticed = time.monotonic() - met.began
        if not fault.until_noticed:
            self._mend(met)
        os.kill(next_rank, signal.SIGCONT)
        self.met.append(met)

    def look(self) -> None:
        for met in self.met:
            met.look()

    def find_unexpected(self) -> str | None:
        """Where a segment was lost to no fault, or its cause does not say to which, in words."""
        expected = [met.fault.cause.format(host=met.host) for met in self.met if met.fault.cause is not None]
        causes = [segment["cause"] for segment in self.runner.status()["segments"]][:-1]
        are_told = all(words in cause for words, cause in zip(expected, causes, strict=False))
        return None if are_told and len(causes) == len(expected) else f"causes {causes}, expected {expected}"

    def _mend(self, met: _Met) -> None:
        met.fault.mend(self.cluster, met.host)
        met.returned = time.monotonic()

    def _count_ends(self) -> int:
        return self.said().count("Segment ended")

    def _count_symptoms(self, fault: HostFault, host: str) -> int:
        """In what the host's ranks say; and what it says of its own reports, which are due every few seconds."""
        logs = Path(self.runner.settings["scratch"]).glob(f"runs/*/*/{host}/{LOG_NAME}")
        of_ranks = sum(log.read_text(errors="replace").count(fault.symptom) for log in logs)
        return of_ranks + sum(fault.symptom in line and f"/{host}.json" in line for line in self.printed())


def _step_of(number: int) -> int:
    """Where fault `number` happens: they share the run's steps alike."""
    return (number + 1) * STEPS // (len(HOST_FAULTS) + 1)
