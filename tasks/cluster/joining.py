"""How a node comes to a segment under way: one that came back, or one more.

Nobody listens any more where the nodes met. Invariant: it takes its number by a claim in the store (`roster.py`), and
its ranks train with the others when these have a view with them; until then nothing that becomes of it is the
segment's.
"""

import socket
import time
from collections.abc import Callable
from contextlib import suppress

from storage.objects.store import Store
from storage.runs.segments import find_outcome
from tasks.cluster.ranks import Rendezvous
from tasks.cluster.rendezvous import CONNECT_SECONDS, RETRY_SECONDS, name_interface, own_addresses
from tasks.cluster.roster import NodePlace, Roster
from tasks.configuration.cluster import ClusterConfig
from training.meeting import Address
from training.spec import SegmentSpec
from training.views.decisions import Decisions
from training.views.ear import Question, ask
from training.views.stored import StoredViews
from training.views.view import View, first_view


class Joining:
    """One node's way into the segment of this `roster`, in which who met was read. `name` is the segment's."""

    def __init__(self, store: Store, spec: SegmentSpec, cluster: ClusterConfig, roster: Roster, name: str) -> None:
        self._store, self._spec, self._cluster, self._roster, self._name = store, spec, cluster, roster, name
        self._began = time.monotonic()
        first = first_view(roster.num_met * spec.train.ranks, 0.0)
        self._decisions = Decisions(StoredViews(store, spec.run, spec.fence), first)

    def claim(self, node: str, port: int, is_stop: Callable[[], bool]) -> NodePlace:
        """The place of this node, which answers at the port.

        Raises `InterruptedError` if the segment is over or this node is to stop, `TimeoutError` if no other one answers
        within `cluster.join_seconds`, and `StoreError`.
        """
        while (host := self._find_own_address()) is None:
            if is_stop():
                raise InterruptedError("asked to stop before a node of the segment was reached")
            self._require_going_on()
            self.require_patience("none of its nodes answered")
            time.sleep(RETRY_SECONDS)  # a machine that cannot be reached does not signal that it can
        self._require_going_on()
        return self._roster.claim(node, Address(host=host, port=port), self._find_newest, self._answers)

    def meet_at(self, place: NodePlace) -> Rendezvous:
        """Of the node's ranks, which meet the others when a view has them."""
        return Rendezvous(
            index=place.index,
            num_nodes=self._roster.num_met,
            address=place.ear.host,
            port=place.ear.port,
            interface=self._cluster.interface or name_interface(place.ear.host),
            ear=place.ear,
            segment=self._name,
            first_life=place.first_life,
        )

    def require_patience(self, problem: str) -> None:
        """Raise `TimeoutError` when the time to join is over."""
        if time.monotonic() - self._began > self._cluster.join_seconds:
            raise TimeoutError(
                f"this node came to segment {self._spec.fence} of run {self._spec.run!r}, which was under way, and "
                f"within {self._cluster.join_seconds:g} s (cluster.join_seconds) {problem}. The log of this node has "
                "what its ranks printed. See whether the nodes reach each other, then start it again."
            )

    def _require_going_on(self) -> None:
        if find_outcome(self._store, self._spec.run, self._spec.fence) is not None:
            raise InterruptedError("This segment is over: the run's next segment goes on.")

    def _find_newest(self) -> View:
        self._decisions.read()
        return self._decisions.newest

    def _find_own_address(self) -> str | None:
        """By which a node that is there can reach this one."""
        self._roster.read()
        for ear in self._roster.ears:
            with suppress(OSError), socket.create_connection((ear.host, ear.port), CONNECT_SECONDS) as connection:
                interface = self._cluster.interface
                return str(connection.getsockname()[0]) if interface is None else own_addresses(interface)[0]
        return None

    def _answers(self, ear: Address) -> bool:
        try:
            ask(ear, Question(segment=self._name, asks="here"))
        except OSError:
            return False
        return True
