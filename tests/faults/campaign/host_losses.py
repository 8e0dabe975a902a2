"""Hosts that are lost, and ranks that die on several of them, while the others train on in the same segment.

Invariant: a rank that stays stands still while something happens to another one's host, so it happens in the midst of
training; and some steps later, so that the others have gone on before a host comes back. Besides the undisturbed
weights it is asked whether they came about in one segment, which read no checkpoint, and which ranks it lost.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.faults.campaign.clusters import job_of
from tests.faults.campaign.host_runs import COMMAND_SECONDS, HostCluster, HostRun, cut_from_hosts, lose_power
from tests.faults.campaign.results import Attempt
from tests.faults.campaign.site import STEPS, Site
from tests.helpers.commands import kill_everything
from tests.helpers.fault_plans import FaultPlan

# Less than Slurm needs to give a node up, 10 to 15 s here: then the segment would be over. Nor is it to be lost to a
# busy machine, on which ranks need a minute to begin, or give no sign of life for a while.
SETTINGS = {"cluster__silent_seconds": 4, "segment__hang_seconds": 300, "segment__lost_seconds": 60}
FIRST = (0,)
LOST_AT, GONE_ON_AT = STEPS // 3, STEPS // 3 + 2


def kill_processes(cluster: HostCluster, host: str) -> None:
    """All of them; the host's kernel says so to whoever asks."""
    cluster.slurm.kill_node(host)


def cut_off(cluster: HostCluster, host: str) -> None:
    cluster.hosts.cut(host)


@dataclass(frozen=True)
class Loss:
    """What happens to the host of one of these ranks. If it lives it is back when the others have gone on, and leaves.

    Where there is a choice it is not the host of the job's batch script, after whose end Slurm may kill the others.
    """

    name: str
    happen: Callable[[HostCluster, str], None]
    ranks: tuple[int, ...] = (1, 2)
    is_dead: bool = False

    @property
    def stays(self) -> int:
        """A rank on another host."""
        return 1 if self.ranks == FIRST else 0

    @property
    def plan(self) -> FaultPlan:
        """The rank that stays stands still; and is slow, or the run would be over before the host is back."""
        return FaultPlan().hang(self.stays, LOST_AT).hang(self.stays, GONE_ON_AT).slow(self.stays)


LOSSES = (
    Loss("all processes of a host are killed", kill_processes, is_dead=True),
    Loss("the host of the first rank loses its power", lose_power, FIRST, is_dead=True),
    Loss("a host is cut off", cut_off),
    Loss("the host of the first rank is cut off from the other hosts alone", cut_from_hosts, FIRST),
)
TWO_DEATHS = "a rank is killed on each of two hosts"


def train_on_without(site: Site, cluster: HostCluster, loss: Loss) -> Attempt:
    """Let a host of a run be lost, and look how the run ended by itself."""
    run, lost = HostRun(site, cluster, "lost", loss.plan, **SETTINGS), _Lost(loss, cluster)
    try:
        still = run.wait_for_still_rank(0)
        lost.happen(run, job_of(still))
        os.kill(still, signal.SIGCONT)
        again = run.wait_for_still_rank(1)
        seconds = run.read_marks(1)[0]["at_ns"] / 1e9 - lost.began
        lost.come_back()
        os.kill(again, signal.SIGCONT)
        code = run.command.wait(COMMAND_SECONDS)
    finally:
        kill_everything(run.command)
        lost.mend()
    problem = _find_problem(site, run, code, lost=[lost.rank], joined=[])
    return Attempt(1, 1, "bad" if problem else "equal", problem or f"{GONE_ON_AT - LOST_AT} steps in {seconds:.0f} s")


def train_on_after_deaths(site: Site, cluster: HostCluster) -> Attempt:
    """Let a rank die on each of two hosts, at one step.

    The third one stands still until others are to join in their places: the run would be over before. How long that
    took, from a death to the view with both, is told.
    """
    ranks = [1, 2]
    plan = FaultPlan().kill_at_step(LOST_AT, rank=1).kill_at_step(LOST_AT, rank=2).hang(0, GONE_ON_AT)
    run = HostRun(site, cluster, "died", plan, **SETTINGS)
    try:
        still = run.wait_for_still_rank(len(ranks))
        run.wait(lambda: run.find_joined() == set(ranks))
        seconds = time.monotonic() - run.read_marks(1)[0]["at_ns"] / 1e9
        os.kill(still, signal.SIGCONT)
        code = run.command.wait(COMMAND_SECONDS)
    finally:
        kill_everything(run.command)
    problem = _find_problem(site, run, code, lost=ranks, joined=ranks)
    told = problem or f"others joined after {seconds:.1f} s"
    return Attempt(len(ranks), len(run.read_fired()) - 1, "bad" if problem else "equal", told)


@dataclass
class _Lost:
    """What became of a host that was lost; a dead one comes back when the run is over."""

    loss: Loss
    cluster: HostCluster
    host: str = ""
    rank: int = -1
    began: float = 0.0
    is_back: bool = False

    def happen(self, run: HostRun, job: int) -> None:
        batch = self.cluster.slurm.read_job(job)["BatchHost"]
        found = [(run.find_host(rank, job), rank) for rank in self.loss.ranks]
        self.host, self.rank = next((one for one in found if one[0] != batch), found[0])
        self.loss.happen(self.cluster, self.host)
        self.began = time.monotonic()

    def come_back(self) -> None:
        if not self.loss.is_dead:
            self.mend()

    def mend(self) -> None:
        if self.host and not self.is_back:
            self.is_back = True
            self.cluster.hosts.mend(self.host)
            if self.loss.is_dead:
                self.cluster.slurm.start_node(self.host)


def _find_problem(site: Site, run: HostRun, code: int, **expected: list[int]) -> str | None:
    """What is wrong with a run that has ended, in words. `expected` are the ranks that were lost, and that joined."""
    if code != 0:
        return f"exit code {code}: {run.said()[-800:]}"
    return site.find_difference(run.runner) or _find_unexpected(run, expected) or run.find_left_behind()


def _find_unexpected(run: HostRun, expected: dict[str, list[int]]) -> str | None:
    segments: list[dict[str, Any]] = run.runner.status()["segments"]
    if len(segments) != 1:
        return f"{len(segments)} segments: {[segment['cause'] for segment in segments]}"
    found = {what: sorted(rank for view in segments[0]["views"] for rank in view[what]) for what in expected}
    return None if found == expected else f"the views say {found}, expected {expected}: {segments[0]['views']}"
