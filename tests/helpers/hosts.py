"""Hosts on this machine: network namespaces with a name and an address of their own, on a bridge whose links can fail.

Invariant: nothing of them outlives the block, no process, namespace or link, however the block is left, nor the test
process if that is killed. What fails, fails without a word: no packet arrives, and nobody is told that none did.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

from tests.helpers.swept import swept_behind

PROGRAMS = ("ip", "tc", "nsenter", "unshare")
PACKAGES = "iproute2 util-linux"
NAMESPACES = Path("/run/netns")  # where `ip` keeps them
# Set aside for measuring networks (RFC 2544): no real network of this machine has it. Each bridge has a part of it.
NETWORK = "198.18"
NUM_PARTS = 256
OWN, STORE = 1, 254  # the last number of this machine's addresses on the bridge; hosts have those from 11 on
FIRST_HOST = 11
INTERFACE = "eth0"  # of a host, beside its lo
NOBODY = "02:00:00:00:00:01"  # an address that no interface has: what is sent there is lost
LONGEST_SECONDS = 60.0
POLL_SECONDS = 0.02
# A host's own name, too: what says where it is says the name, as on machines that are apart.
NAMED = 'echo "$0" > /proc/sys/kernel/hostname; exec "$@"'


class Way(Enum):
    """Of packets over a host's link."""

    TO_HOST = "to the host"
    FROM_HOST = "from the host"


@contextmanager
def running_hosts(names: Sequence[str]) -> Iterator["Hosts"]:
    """Hosts of these names, that reach each other and this machine as long as the block lasts.

    Raises `RuntimeError` where the system refuses it: see `find_reason_to_skip`.
    """
    bridge = _make_bridge()
    with swept_behind(sweep, bridge):
        hosts = Hosts(bridge, tuple(names))
        hosts.bring_up()
        yield hosts


def find_reason_to_skip() -> str | None:
    """Why there can be no such hosts on this machine, in one sentence; None if there can."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"{missing[0]} is missing, which makes network namespaces; on Debian: apt-get install {PACKAGES}"
    if os.geteuid() != 0:
        return "only root may make network namespaces, and the tests run as another user"
    tried = subprocess.run(["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, text=True)
    return f"this system refuses network namespaces to root: {tried.stderr.strip()}" if tried.returncode else None


class Hosts:
    """Some hosts and the links between them and this machine."""

    def __init__(self, bridge: str, names: tuple[str, ...]) -> None:
        self.names = names
        self.bridge = bridge
        self._part = int(bridge.rpartition("-")[2])
        # Of this machine: one that all of it has, and one for what a host can be cut from alone.
        self.address, self.store_address = self._numbered(OWN), self._numbered(STORE)

    def bring_up(self) -> None:
        """Give this machine its addresses, and make all hosts with theirs."""
        for address in (self.address, self.store_address):
            _call("ip", "address", "add", f"{address}/24", "dev", self.bridge)
        _call("ip", "link", "set", self.bridge, "up")
        for name in self.names:
            self._make_host(name)

    def address_of(self, name: str) -> str:
        return self._numbered(FIRST_HOST + self.names.index(name))

    def command_on(self, name: str, command: Sequence[str]) -> list[str]:
        """A command line that does this on a host; the process that is started becomes the command."""
        # Not `ip netns exec`: that gives the command another /sys, without the cgroups that slurmd looks for.
        inside = ["nsenter", f"--net={NAMESPACES / self._namespace(name)}"]
        return [*inside, "unshare", "--uts", "sh", "-c", NAMED, name, *command]

    def cut(self, name: str, *ways: Way) -> None:
        """From now on no packet passes the host's link, in these directions or, where none is given, in both."""
        for way in ways or tuple(Way):
            self._shape(name, way, "blackhole")

    def slow(self, name: str, kilobits_per_second: int, burst_kilobytes: int = 4) -> None:
        """From now on the host's link carries so much in each direction, whatever is sent.

        After a pause it carries so many bytes at once; packets that are larger are cut into small ones.
        """
        limit = ("rate", f"{kilobits_per_second}kbit", "burst", f"{burst_kilobytes}kb", "latency", "1s")
        for way in Way:
            self._shape(name, way, "tbf", *limit)

    def cut_from(self, name: str, address: str) -> None:
        """From now on nothing that the host sends to this one address arrives there."""
        words = ("replace", address, "lladdr", NOBODY, "nud", "permanent", "dev", INTERFACE)
        _call("ip", "-netns", self._namespace(name), "neighbour", *words)

    def mend(self, name: str) -> None:
        """The host's link is again as it was in the beginning."""
        for way in Way:
            with suppress(RuntimeError):  # there is nothing to be taken away
                self._queue(name, way, "del")
        _call("ip", "-netns", self._namespace(name), "neighbour", "flush", "dev", INTERFACE, "nud", "permanent")

    def stop(self, name: str) -> None:
        """All that runs on the host stands still, until `go_on`."""
        _send(signal.SIGSTOP, self._namespace(name))

    def go_on(self, name: str) -> None:
        _send(signal.SIGCONT, self._namespace(name))

    def kill(self, name: str) -> None:
        """SIGKILL for all that runs on the host; returns when nothing of it is left."""
        _kill_all(self._namespace(name))

    def find_pids(self, name: str) -> list[int]:
        """What runs on the host."""
        return _find_pids(self._namespace(name))

    def read_bytes_sent(self, name: str) -> int:
        """By the host over its link since it was made."""
        return int(Path(f"/sys/class/net/{self._link(name)}/statistics/rx_bytes").read_text())

    def _make_host(self, name: str) -> None:
        namespace, link = self._namespace(name), self._link(name)
        _call("ip", "netns", "add", namespace)
        _call("ip", "link", "add", link, "type", "veth", "peer", "name", INTERFACE, "netns", namespace)
        _call("ip", "link", "set", link, "master", self.bridge, "up")
        inside = ("ip", "-netns", namespace)
        _call(*inside, "address", "add", f"{self.address_of(name)}/24", "dev", INTERFACE)
        for interface in ("lo", INTERFACE):
            _call(*inside, "link", "set", interface, "up")

    def _shape(self, name: str, way: Way, *discipline: str) -> None:
        """What is sent is shaped where it is sent: at the host's own end of the link, or at this machine's."""
        self._queue(name, way, "replace", *discipline)

    def _queue(self, name: str, way: Way, change: str, *discipline: str) -> None:
        if way is Way.TO_HOST:
            _call("tc", "qdisc", change, "dev", self._link(name), "root", *discipline)
        else:
            _call("tc", "-netns", self._namespace(name), "qdisc", change, "dev", INTERFACE, "root", *discipline)

    def _numbered(self, number: int) -> str:
        return f"{NETWORK}.{self._part}.{number}"

    def _namespace(self, name: str) -> str:
        return f"{self.bridge}-{name}"

    def _link(self, name: str) -> str:
        return f"{self.bridge}-{self.names.index(name)}"


def sweep(bridge: str) -> None:
    """SIGKILL for all that runs on the hosts of a bridge, and no trace of them afterwards."""
    for namespace in [name for name in _list_namespaces() if name.startswith(f"{bridge}-")]:
        with suppress(RuntimeError):  # two may sweep at a time: a watcher, and a process that was not quite gone
            _kill_all(namespace)
            _call("ip", "netns", "delete", namespace)
    with suppress(RuntimeError):
        _call("ip", "link", "delete", bridge)


def _make_bridge() -> str:
    """A bridge whose name says which part of the network it has: so one part is never taken twice."""
    first = os.getpid() % NUM_PARTS
    refused = ""
    for part in (*range(first, NUM_PARTS), *range(first)):
        bridge = f"hosts-{part}"
        try:
            _call("ip", "link", "add", bridge, "type", "bridge")
        except RuntimeError as error:
            refused = str(error)
            if "File exists" not in refused:
                break
        else:
            return bridge
    raise RuntimeError(f"no bridge could be made: {refused}")


def _list_namespaces() -> list[str]:
    return [line.split()[0] for line in _call("ip", "netns", "list").splitlines() if line]


def _find_pids(namespace: str) -> list[int]:
    return [int(pid) for pid in _call("ip", "netns", "pids", namespace).split()]


def _send(number: signal.Signals, namespace: str) -> None:
    for pid in _find_pids(namespace):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _kill_all(namespace: str) -> None:
    deadline = time.monotonic() + LONGEST_SECONDS
    while _find_pids(namespace):
        if time.monotonic() >= deadline:
            raise TimeoutError(f"processes of {namespace} survived SIGKILL for {LONGEST_SECONDS:.0f} s")
        _send(signal.SIGKILL, namespace)
        time.sleep(POLL_SECONDS)  # they are not this process's children: nobody tells when they are gone


def _call(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout
