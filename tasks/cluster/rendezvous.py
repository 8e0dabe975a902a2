"""Rendezvous of a job's nodes: which number each has, and where their ranks meet.

Invariant: the first node to come writes down in the store where it is, once for each segment; the others go there, and
are given their numbers when all have come. Which address and interface they take is found by connecting, so a node with
several networks needs no name service. What nodes send each other is a line of JSON.
"""

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import psutil

from tasks.cluster.orders import FirstNode
from tasks.cluster.processes import POLL_SECONDS
from tasks.cluster.ranks import Rendezvous
from tasks.configuration.cluster import ClusterConfig

LOOPBACK_ADDRESS = "127.0.0.1"
# Reserved for documentation (RFC 5737): a route is looked up, and nothing is sent.
SOMEWHERE = ("192.0.2.1", 9)
CONNECT_SECONDS = 2.0
RETRY_SECONDS = 0.5
MOST_LINE_BYTES = 1024
WAITING_CONNECTIONS = 512


def introduce(incarnation: str, node: str, interface: str | None) -> tuple[FirstNode, socket.socket]:
    """This node as the first one: its addresses, the one of the default route first, and a socket that listens."""
    addresses = _own_addresses(interface)
    listening = socket.create_server(("", 0), backlog=WAITING_CONNECTIONS)
    port = int(listening.getsockname()[1])
    return FirstNode(incarnation=incarnation, node=node, addresses=addresses, port=port), listening


class NodeMeeting:
    """One node's part in the meeting of a segment's nodes. `name` is the segment's, `is_stop` asks whether to give up.

    Its methods raise `TimeoutError` if not all come within `cluster.join_seconds`, and `InterruptedError` if it is
    given up.
    """

    def __init__(
        self, cluster: ClusterConfig, name: str, num_nodes: int, first: FirstNode, is_stop: Callable[[], bool]
    ) -> None:
        self._cluster, self._name, self._num_nodes, self._first = cluster, name, num_nodes, first
        self._is_stop = is_stop
        self._deadline = time.monotonic() + cluster.join_seconds

    def host(self, listening: socket.socket) -> Rendezvous:
        """As the first node: wait for the others, and number them."""
        others: dict[str, socket.socket] = {}
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
                others[found] = connection
            for index, node in enumerate(sorted(others), start=1):
                others[node].sendall(_line({"index": index}))
        finally:
            for connection in others.values():
                connection.close()
        address = self._first.addresses[0]
        return self._found(0, address, address, listening)

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
                        connection.sendall(_line({"name": self._name, "node": node}))
                        problem = f"not all came to the first one, {self._first.node}"
                        index = self._wait_for_number(connection)
                        own = str(connection.getsockname()[0])
                except OSError as error:
                    if isinstance(error, InterruptedError):
                        raise
                    continue
                if index is not None:
                    return self._found(index, address, own)
            self._require_patience(problem)
            time.sleep(RETRY_SECONDS)  # a machine that cannot be reached does not signal that it can

    def _hear(self, connection: socket.socket) -> str | None:
        """The node that came; None for whoever is none of this segment's."""
        connection.settimeout(CONNECT_SECONDS)
        try:
            said = _read(connection)
        except TimeoutError:
            return None
        is_ours = said is not None and said.get("name") == self._name and isinstance(said.get("node"), str)
        return str(said["node"]) if said is not None and is_ours else None

    def _wait_for_number(self, connection: socket.socket) -> int | None:
        """None if the first node is gone, or the time is over."""
        connection.settimeout(POLL_SECONDS)
        while time.monotonic() < self._deadline:
            if self._is_stop():
                raise InterruptedError("asked to stop before all nodes had come")
            try:
                said = _read(connection)
            except TimeoutError:
                continue
            return said["index"] if said is not None and isinstance(said.get("index"), int) else None
        return None

    def _require_patience(self, problem: str) -> None:
        if self._is_stop():
            raise InterruptedError("asked to stop before all nodes had come")
        if time.monotonic() > self._deadline:
            raise TimeoutError(
                f"the job has {self._num_nodes} nodes, but within {self._cluster.join_seconds:g} s "
                f"(cluster.join_seconds) {problem}"
            )

    def _found(self, index: int, address: str, own: str, listening: socket.socket | None = None) -> Rendezvous:
        own = own if self._cluster.interface is None else _own_addresses(self._cluster.interface)[0]
        return Rendezvous(
            index=index,
            num_nodes=self._num_nodes,
            address=address,
            port=self._first.port,
            interface=self._cluster.interface or _interface_of(own),
            listening=listening.fileno() if listening is not None else None,
        )


def _line(said: dict[str, Any]) -> bytes:
    return json.dumps(said).encode() + b"\n"


def _read(connection: socket.socket) -> dict[str, Any] | None:
    """What the other side says in a line; None if that is none of ours. Raises `TimeoutError` where it says nothing."""
    data = b""
    while not data.endswith(b"\n") and len(data) < MOST_LINE_BYTES:
        try:
            part = connection.recv(MOST_LINE_BYTES)
        except TimeoutError:
            if data:
                return None
            raise
        except OSError:
            return None
        if not part:
            return None
        data += part
    try:
        said = json.loads(data)
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def _own_addresses(interface: str | None) -> list[str]:
    """IPv4. Loopback only where there is nothing else: then all nodes are this machine."""
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


def _interface_of(address: str) -> str:
    for name, addresses in psutil.net_if_addrs().items():
        if any(own.address == address for own in addresses):
            return name
    raise ValueError(f"No network interface of this node has the address {address}.")
