"""Faults of a campaign, by name: each is caused by itself and gives one line of the table.

Invariant: a server or cluster is started when the first fault that needs it is caused.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial

from tests.faults.campaign import (
    bad_sectors,
    chains,
    clusters,
    damage,
    disturbances,
    first_weights,
    host_losses,
    host_runs,
    hosts,
    network,
    poison,
    prune_kills,
    rivals,
    survivors,
)
from tests.faults.campaign.points import PHASES, Point
from tests.faults.campaign.results import Attempt
from tests.faults.campaign.site import Site
from tests.helpers.faulty_proxy import Failure, FaultyProxy
from tests.helpers.slurm_cluster import SlurmCluster, find_reason_to_skip, running_slurm

NUM_FLIPS, NUM_CUTS = 1000, 100


@dataclass(frozen=True)
class Fault:
    """One line of the table, and what has to be done for it."""

    name: str
    attempt: Callable[[], Attempt]


class Faults:
    """All faults for a site. `resources` ends what they start; `say` is called with what is being done."""

    def __init__(
        self, site: Site, generator: random.Random, resources: ExitStack, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._site = site
        self._generator = generator
        self._resources = resources
        self._say = say

    def list_all(self) -> Iterator[Fault]:
        """All faults; those that find most come first: each moment of a kill, the network, rivals, the rest."""
        site, generator = self._site, self._generator
        yield Fault("power cut at every operation: beginning", self._kill_beginnings)
        for phase in PHASES:
            yield Fault(f"power cut at every operation: {phase}", partial(self._kill_in, phase))
        for phase in survivors.PHASES:
            yield Fault(f"SIGKILL of a rank at its operations: {phase}", partial(self._kill_ranks_in, phase))
        for deaths in survivors.DEATHS:
            yield Fault(f"SIGKILL of {deaths.name}", partial(survivors.go_on_after, site, deaths))
        yield Fault(
            "power cut at every operation on the first weights of a pretrained model",
            partial(first_weights.die_while_beginning, site, lambda point: self._say(str(point))),
        )
        yield Fault(
            "NaN in a step, and power cut at every operation of the rollback", partial(poison.die_in_rollback, site)
        )
        for failure, when in ((Failure.STRUCK_BEFORE, "before"), (Failure.STRUCK_AFTER, "after")):
            yield Fault(f"SIGKILL of all {when} every request", partial(self._die_at_requests, failure))
        for fault in network.NETWORK_FAULTS:
            yield Fault(fault.name, partial(self._meet_network, fault))
        yield Fault("the bucket vanishes for a minute", lambda: network.vanish(site, self._bucket))
        yield Fault(
            "the bucket refuses everybody for a minute",
            lambda: network.vanish(site, self._bucket, Failure.REFUSED),
        )
        for name, attempt in rivals.RIVALRIES.items():
            yield Fault(name, partial(attempt, site))
        for disturbance in disturbances.DISTURBANCES:
            yield Fault(disturbance.name, partial(disturbances.meet, site, disturbance))
        for which, death in bad_sectors.DEATHS.items():
            name = f"a checkpoint can never be read again: {which}"
            yield Fault(name, partial(bad_sectors.go_on_without, site, death))
        yield Fault("cluster: all that happens to Slurm jobs", lambda: clusters.everything_happens(site, self._slurm))
        yield Fault(
            "cluster: the command dies while its Slurm job runs",
            lambda: clusters.command_dies_and_its_job_goes_on(site, self._slurm),
        )
        yield Fault(
            "cluster: the command stands still, and comes back to its Slurm job",
            lambda: clusters.command_stands_still_and_comes_back(site, self._slurm),
        )
        yield Fault(
            "cluster: all that happens to three hosts and their links",
            lambda: hosts.everything_happens(site, self._hosts),
        )
        for loss in host_losses.LOSSES:
            yield Fault(f"hosts train on: {loss.name}", partial(self._lose_host, loss))
        yield Fault(
            f"hosts train on: {host_losses.TWO_DEATHS}",
            lambda: host_losses.train_on_after_deaths(site, self._hosts),
        )
        yield Fault("power cut at every operation of a prune", self._kill_prunes)
        yield Fault("a bit flips", partial(damage.flip_bits, site, generator, NUM_FLIPS))
        yield Fault("a file is cut short", partial(damage.cut_short, site, generator, NUM_CUTS))

    def attempt(self, name: str) -> Attempt:
        """Cause the fault of this name; the first one prepares the site."""
        if not self._site.reference:
            self._site.prepare()
        return next(fault for fault in self.list_all() if fault.name == name).attempt()

    @cached_property
    def _points(self) -> tuple[list[Point], list[Point]]:
        return chains.trace_points(self._site)

    @cached_property
    def _bucket(self) -> FaultyProxy:
        return self._resources.enter_context(network.running_bucket(self._site))

    @cached_property
    def _slurm(self) -> SlurmCluster:
        """Cluster of this site alone: a job that takes the nodes of another one's would be a fault too many."""
        reason = find_reason_to_skip()
        if reason is not None:
            raise RuntimeError(reason)
        folder = self._site.new_folder("slurm")
        folder.mkdir(parents=True)
        return self._resources.enter_context(running_slurm(folder))

    @cached_property
    def _hosts(self) -> host_runs.HostCluster:
        return self._resources.enter_context(host_runs.running_cluster(self._site))

    @cached_property
    def _requests(self) -> list[tuple[str, str]]:
        return network.find_requests(self._site, self._bucket)

    def _kill_beginnings(self) -> Attempt:
        return self._kill(self._points[0], [])

    def _kill_in(self, phase: str) -> Attempt:
        return self._kill([], [point for point in self._points[1] if point.phase == phase])

    def _kill(self, beginning: list[Point], continuing: list[Point]) -> Attempt:
        chain = chains.kill_at_each(self._site, beginning, continuing, "power", lambda point: self._say(str(point)))
        problems = [*chain.problems, *(f"never met: {point}" for point in chain.never_met)]
        points = len(beginning) + len(continuing)
        return Attempt(points, len(chain.killed), "bad" if problems else "equal", "; ".join(problems))

    def _kill_ranks_in(self, phase: str) -> Attempt:
        points = [point for point in self._points[1] if point.moment.role == "rank" and point.phase == phase]
        drawn = self._generator.sample(points, min(len(points), survivors.MOST_POINTS))
        return survivors.die_at_each(self._site, drawn, lambda point: self._say(str(point)))

    def _kill_prunes(self) -> Attempt:
        return prune_kills.kill_at_each(self._site, prune_kills.trace_prune(self._site))

    def _lose_host(self, loss: host_losses.Loss) -> Attempt:
        return host_losses.train_on_without(self._site, self._hosts, loss)

    def _meet_network(self, fault: network.NetworkFault) -> Attempt:
        return network.meet(self._site, self._bucket, fault)

    def _die_at_requests(self, failure: Failure) -> Attempt:
        return network.die_at_each(self._site, self._bucket, self._requests, failure, self._say)
