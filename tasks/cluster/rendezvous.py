"""Rendezvous of a job's nodes through the store, without a coordinator.

Invariant: the first node to come writes down where it is, once for each segment; the others go there. Which address
and interface they take is found by connecting, so a node with several networks needs no name service.
"""

import socket
import time

import psutil

from tasks.cluster.orders import FirstNode
from tasks.cluster.ranks import Rendezvous
from tasks.configuration.cluster import ClusterConfig

LOOPBACK_ADDRESS = "127.0.0.1"
# Reserved for documentation (RFC 5737): a route is looked up, and nothing is sent.
SOMEWHERE = ("192.0.2.1", 9)
CONNECT_SECONDS = 2.0
RETRY_SECONDS = 0.5


def introduce(incarnation: str, node: str, interface: str | None) -> FirstNode:
    """This node as the first one: its addresses, the one of the default route first, and a port that is free."""
    return FirstNode(incarnation=incarnation, node=node, addresses=_own_addresses(interface), port=_find_free_port())


def join(cluster: ClusterConfig, name: str, num_nodes: int, first: FirstNode, is_host: bool) -> Rendezvous:
    """Where this node's torchrun goes. Raises `TimeoutError` if the first node cannot be reached."""
    address, own = (first.addresses[0],) * 2 if is_host else _reach(first, cluster.join_seconds)
    own = own if cluster.interface is None else _own_addresses(cluster.interface)[0]
    return Rendezvous(
        name=name,
        num_nodes=num_nodes,
        endpoint=f"{address}:{first.port}",
        is_host=is_host,
        join_seconds=cluster.join_seconds,
        own_address=own,
        interface=cluster.interface or _interface_of(own),
    )


def _reach(first: FirstNode, patience_seconds: float) -> tuple[str, str]:
    """The address at which the first node answers, and this node's own on the way there."""
    deadline = time.monotonic() + patience_seconds
    while True:
        for address in first.addresses:
            try:
                with socket.create_connection((address, first.port), CONNECT_SECONDS) as connection:
                    return address, str(connection.getsockname()[0])
            except OSError:
                continue
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"The first node, {first.node}, did not answer within {patience_seconds:g} s "
                f"(cluster.join_seconds) at port {first.port} of {' or '.join(first.addresses)}. If they are not the "
                "addresses by which nodes reach each other, set cluster.interface."
            )
        time.sleep(RETRY_SECONDS)  # its torchrun needs seconds to begin to listen, and does not signal that it does


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


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
