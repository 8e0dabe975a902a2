"""Rendezvous of a job's nodes: which number each has, and where their ranks meet.

Invariant: the first node to come writes down in the store where it is, once for each segment; the others go there, and
are given their numbers when all have come, and where each of them answers later (`training/views/ear.py`). Which
address and interface they take is found by connecting, so a node with several networks needs no name service. What
nodes send each other is a line of JSON.
"""

import socket
import time
from collections.abc import Callable

import psutil
from pydantic import BaseModel, ValidationError

from tasks.cluster.orders import FirstNode
from tasks.cluster.processes import POLL_SECONDS
from tasks.cluster.ranks import Rendezvous
from tasks.configuration.cluster import ClusterConfig
from training.meeting import Address
from training.views.ear import read_line, write_line

LOOPBACK_ADDRESS = "127.0.0.1"
# Reserved for documentation (RFC 5737): a route is looked up, and nothing is sent.
SOMEWHERE = ("192.0.2.1", 9)
CONNECT_SECONDS = 2.0
RETRY_SECONDS = 0.5
MOST_ANSWER_BYTES = 1 << 20  # with an address of each node
WAITING_CONNECTIONS = 512


def introduce(incarnation: str, node: str, interface: str | None) -> tuple[FirstNode, socket.socket]:
    """This node as the first one: its addresses, the one of the default route first, and a socket that listens."""
    addresses = own_addresses(interface)
    listening = socket.create_server(("", 0), backlog=WAITING_CONNECTIONS)
    port = int(listening.getsockname()[1])
    return FirstNode(incarnation=incarnation, node=node, addresses=addresses, port=port), listening


class Numbered(BaseModel):
    """What the first node says to another one: its number, and the ears of all in the order of their numbers."""

    index: int
    nodes: dict[str, Address]


class NodeMeeting:
    """One node's part in the meeting of a segment's nodes. `name` is the segment's, `is_stop` asks whether to give up.

    At the port `ear` it answers the others later.

    Its methods raise `TimeoutError` if not all come within `cluster.join_seconds`, and `InterruptedError` if it is
    given up.
    """

    def __init__(
        self,
        cluster: ClusterConfig,
        name: str,
        num_nodes: int,
        first: FirstNode,
        ear: int,
        is_stop: Callable[[], bool],
    ) -> None:
        self._ear = ear
        self._cluster, self._name, self._num_nodes, self._first = cluster, name, num_nodes, first
        self._is_stop = is_stop
        self._deadline = time.monotonic() + cluster.join_seconds

    def host(self, listening: socket.socket) -> Rendezvous:
        """As the first node: wait for the others, and number them."""
        others: dict[str, socket.socket] = {}
        ears: dict[str, Address] = {}
        address = self._first.addresses[0]
        listening.settimeout(POLL_SECONDS)
        try:
            while len(others) < self._num_nodes - 1:
                self._require_patience(f"only {' and '.join([self._first.node, *others])} came")
                try:
                    connection, _ = listening.accept()
                except TimeoutError:
                    continue
                found = self._hear(connection)
                if found is None:
                    connection.close()
                    continue
                node, ears[node] = found
                others[node] = connection
            all_nodes = {self._first.node: Address(host=address, port=self._ear)}
            all_nodes |= {node: ears[node] for node in sorted(others)}
            for index, node in enumerate(sorted(others), start=1):
                others[node].sendall(write_line(Numbered(index=index, nodes=all_nodes).model_dump()))
        finally:
            for connection in others.values():
                connection.close()
        return self._found(0, address, address, all_nodes, listening)

    def join(self, node: str) -> Rendezvous:
        """As another node: go to the first one, and wait for the number that it gives."""
        problem = (
            f"the first node, {self._first.node}, did not answer at port {self._first.port} of "
            f"{' or '.join(self._first.addresses)}. If they are not the addresses by which nodes reach each other, "
            "set cluster.interface"
        )
        while True:
            for address in self._first.addresses:
                try:
                    with socket.create_connection((address, self._first.port), CONNECT_SECONDS) as connection:
                        own = self._own_address(connection)
                        ear = Address(host=own, port=self._ear).model_dump()
                        connection.sendall(write_line({"name": self._name, "node": node, "ear": ear}))
                        problem = f"not all came to the first one, {self._first.node}"
                        found = self._wait_for_number(connection)
                except OSError as error:
                    if isinstance(error, InterruptedError):
                        raise
                    continue
                if found is not None:
                    # This is the address at which the first one was found.
                    first = {self._first.node: Address(host=address, port=found.nodes[self._first.node].port)}
                    return self._found(found.index, address, own, found.nodes | first)
            self._require_patience(problem)
            time.sleep(RETRY_SECONDS)  # a machine that cannot be reached does not signal that it can

    def _hear(self, connection: socket.socket) -> tuple[str, Address] | None:
        """The node that came, and its ear; None for whoever is none of this segment's."""
        connection.settimeout(CONNECT_SECONDS)
        try:
            said = read_line(connection)
            if said is None or said.get("name") != self._name or not isinstance(said.get("node"), str):
                return None
            return said["node"], Address.model_validate(said.get("ear"))
        except (TimeoutError, ValidationError):
            return None

    def _wait_for_number(self, connection: socket.socket) -> Numbered | None:
        """None if the first node is gone, or the time is over."""
        connection.settimeout(POLL_SECONDS)
        while time.monotonic() < self._deadline:
            if self._is_stop():
                raise InterruptedError("asked to stop before all nodes had come")
            try:
                said = read_line(connection, MOST_ANSWER_BYTES)
            except TimeoutError:
                continue
            try:
                return Numbered.model_validate(said)
            except ValidationError:
                return None
        return None

    def _require_patience(self, problem: str) -> None:
        if self._is_stop():
            raise InterruptedError("asked to stop before all nodes had come")
        if time.monotonic() > self._deadline:
            raise TimeoutError(
                f"the job has {self._num_nodes} nodes, but within {self._cluster.join_seconds:g} s "
                f"(cluster.join_seconds) {problem}"
            )

    def _own_address(self, connection: socket.socket) -> str:
        interface = self._cluster.interface
        return str(connection.getsockname()[0]) if interface is None else own_addresses(interface)[0]

    def _found(
        self, index: int, address: str, own: str, nodes: dict[str, Address], listening: socket.socket | None = None
    ) -> Rendezvous:
        return Rendezvous(
            index=index,
            num_nodes=self._num_nodes,
            address=address,
            port=self._first.port,
            interface=self._cluster.interface or name_interface(own),
            listening=listening.fileno() if listening is not None else None,
            nodes=nodes,
            ear=list(nodes.values())[index],
            segment=self._name,
        )


def own_addresses(interface: str | None) -> list[str]:
    """Of this machine, IPv4, that of the default route first. Raises `ValueError` where it has no such interface.

    Loopback only where there is nothing else: then all nodes are this machine."""
    found = {
        address.address: name
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family is socket.AF_INET and not address.address.startswith("127.")
    }
    if interface is not None:
        own = [address for address, name in found.items() if name == interface]
        if not own:
            raise ValueError(
                f"cluster.interface = {interface!r}: this node has no such interface with an IPv4 address. It has "
                f"{', '.join(sorted(set(found.values()))) or 'none'}."
            )
        return own
    routed = _address_of_default_route()
    return sorted(found, key=lambda address: address != routed) or [LOOPBACK_ADDRESS]


def _address_of_default_route() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(SOMEWHERE)
        except OSError:
            return None
        return str(probe.getsockname()[0])


def name_interface(address: str) -> str:
    """The interface that has this address of this machine. Raises `ValueError` where none has it."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(own.address == address for own in addresses):
            return name
    raise ValueError(f"No network interface of this node has the address {address}.")
