"""What follows in Prefect from what a store says: states of flow runs, the next one, and schedules.

Invariant: all may be done again, by whoever acts next: a state is set where it is not set, the next flow run has a key
of the dead holder's own, and a paused schedule is paused. A server that does not answer is an error for the caller,
who does it again at the next look.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType
from prefect.exceptions import PrefectException

from storage.objects.addresses import RUNS_FOLDER
from tasks.prefect_bridge.flow_runs import close, find_below
from tasks.prefect_bridge.private.server_requests import find_heartbeats
from tasks.prefect_bridge.run_deployments import (
    TAG,
    begin_next,
    end_late,
    find_run_deployments,
    find_running,
    find_wish,
    is_under_way,
    pause_schedule,
    why_nothing_begins,
)
from tasks.prefect_bridge.server import impatient_client
from tasks.reconciling.looks import SeenRun

DEAD = "The process or its machine was killed, or stood still. The next flow run goes on from the promoted checkpoint."
TAKEN_UP = "A flow run of its deployment is under way, or begins within seconds."
LONE_DEAD = (
    "It held no run, and its heartbeats have ended: the process or its machine was killed, or stood still. The next "
    "flow run goes on."
)


class ServerAwayError(Exception):
    """Prefect's server did not answer, or refused: what was to be done is done at a later look."""


@dataclass(frozen=True)
class Tended:
    """The addresses of the complete runs whose deployment was found, and how many late flow runs were ended."""

    at_rest: Collection[str]
    num_ended: int


class Consequences(Protocol):
    """What a store's watch asks for. All raise `ServerAwayError`."""

    def go_on(self, seen: SeenRun, ids: Sequence[str], is_to_stop: bool, is_again: bool) -> str:
        """Set the flow runs of a dead holder to crashed, and begin the next one; a sentence on what was done.

        `ids`: those in which the lease was taken. `is_to_stop`: a person has asked for the end of the segment. If the
        sentence is `TAKEN_UP`, it is to be asked again: that flow run may have died, too. Then, `is_again`, only the
        next one is begun: whoever went on with a flow run that was called crashed has called it running since.
        """

    def is_taken_up(self, seen: SeenRun) -> bool:
        """Whether a flow run of the run's deployment works, or is about to begin."""

    def tend(self, addresses: Collection[str], complete: Collection[str]) -> Tended:
        """Pause the schedules of `complete` runs, and end late flow runs of all; runs by their addresses."""

    def find_signs(self, store_address: str, held: Collection[str]) -> Mapping[UUID, str]:
        """Of the flow runs of a store's deployments that are shown as running, what was heard of each.

        A sign changes as long as the flow run lives. Left out are the flow runs of `held` runs, given by their
        addresses, and those of which nothing was ever heard: their heartbeats may be off, or kept back by a proxy.
        """

    def call_dead(self, id: UUID) -> str | None:
        """Set a flow run to crashed, and those within it; its name, or None if it is shown as running no more."""


class PrefectConsequences:
    """On the server that is configured. `tag`: what all deployments of ours have."""

    def __init__(self, tag: str = TAG) -> None:
        self._tag = tag

    def go_on(self, seen: SeenRun, ids: Sequence[str], is_to_stop: bool, is_again: bool) -> str:
        those = [UUID(id) for id in ids]
        with _asking() as client:
            wish = find_wish(client, those)
            if wish is not None and wish.state is not None:
                return f"Its flow run {wish.name} is {wish.state.name}, as a person has set it, and stays so."
            if those and not is_again:
                close(client, those, DEAD)
            if is_to_stop:
                return "A person has asked for its end: no flow run is begun."
            return self._begin_next(client, seen)

    def is_taken_up(self, seen: SeenRun) -> bool:
        with _asking() as client:
            found = find_run_deployments(client, [seen.address], self._tag)
            return any(is_under_way(client, deployment) for deployment in found.values())

    def tend(self, addresses: Collection[str], complete: Collection[str]) -> Tended:
        with _asking() as client:
            found = find_run_deployments(client, addresses, self._tag)
            at_rest = [address for address in complete if address in found]
            for address in at_rest:
                pause_schedule(client, found[address])
            return Tended(at_rest, end_late(client, list(found.values())))

    def find_signs(self, store_address: str, held: Collection[str]) -> Mapping[UUID, str]:
        with _asking() as client:
            running = find_running(client, f"{store_address}/{RUNS_FOLDER}/", held, self._tag)
            return find_heartbeats(client, [flow_run.id for flow_run in running])

    def call_dead(self, id: UUID) -> str | None:
        with _asking() as client:
            flow_run = client.read_flow_run(id)
            if flow_run.state is None or flow_run.state.type != StateType.RUNNING:
                return None
            if below := [one.id for one in find_below(client, id)]:
                close(client, below, LONE_DEAD)
            # The last one: as long as it is shown as running all of this is done again.
            close(client, [id], LONE_DEAD)
            return flow_run.name

    def _begin_next(self, client: SyncPrefectClient, seen: SeenRun) -> str:
        deployment = find_run_deployments(client, [seen.address], self._tag).get(seen.address)
        if deployment is None:
            return "The server has no deployment of it: start it again with `holdfast run CONFIG`."
        if (why := why_nothing_begins(deployment)) is not None:
            return f"No flow run is begun, since {why}."
        if is_under_way(client, deployment):
            return TAKEN_UP
        return f"The next flow run is {begin_next(client, deployment, _key_of_next(seen)).name}."


def _key_of_next(seen: SeenRun) -> str:
    """Of each dead holder one: the watch over a job may be taken over more than once under one fence."""
    assert seen.lease is not None
    holder = seen.lease.holder
    return f"{seen.address} {seen.fence} {holder.host} {holder.pid} {holder.start_ticks}"


@contextmanager
def _asking() -> Iterator[SyncPrefectClient]:
    try:
        with impatient_client() as client:
            yield client
    except (httpx.HTTPError, PrefectException) as error:
        raise ServerAwayError(type(error).__name__) from error
