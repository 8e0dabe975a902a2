"""Nodes of a segment as processes of this machine: what a scheduler starts on each machine, without a scheduler.

Invariant: none outlives the block, nor do its ranks.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from storage.objects.local_store import LocalStore
from tasks.cluster.orders import JobOrder, write_order
from tasks.cluster.processes import POLL_SECONDS, environment_of_installation, kill_tree
from tasks.configuration.cluster import ClusterConfig
from tasks.configuration.notices import NoticesConfig
from tests.helpers.hosts import Hosts
from training.agents.locks import LockHolder, find_holders
from training.spec import SegmentSpec
from training.views.folder import ViewFolder

# For what hangs, not for what is slow.
LONGEST_SECONDS = 500.0
PROGRAM = "tasks.cluster.node"


class Nodes:
    """The processes of a segment's nodes, by their names."""

    def __init__(self, spec: SegmentSpec, names: Sequence[str], output: Path, hosts: Hosts | None = None) -> None:
        self.spec, self.names = spec, tuple(names)
        self._output, self._hosts = output, hosts
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._let_go: list[subprocess.Popen[bytes]] = []

    def start(self, name: str) -> None:
        """As a scheduler does: by the environment a node learns which one it is."""
        variables = {
            "SLURMD_NODENAME": name,
            "SLURM_JOB_ID": "1",
            "SLURM_JOB_NAME": "nodes",
            "SLURM_NNODES": str(len(self.names)),
        }
        command = [sys.executable, "-u", "-m", PROGRAM]
        command += [self.spec.store, self.spec.run, str(self.spec.fence)]
        with self._file(name).open("ab") as output:
            self._processes[name] = subprocess.Popen(
                command if self._hosts is None else self._hosts.command_on(name, command),
                env=environment_of_installation() | variables,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def folder(self, name: str) -> Path:
        """The scratch of a node."""
        return self.spec.scratch_folder / name

    def ranks(self, name: str) -> list[LockHolder]:
        """The living ranks of a node."""
        return [holder for holder in find_holders(self.folder(name)) if holder.rank is not None]

    def views(self, name: str) -> ViewFolder:
        """As this node has them."""
        return ViewFolder(self.folder(name))

    def are_running(self) -> bool:
        """Whether any node is at work."""
        return any(process.poll() is None for process in self._processes.values())

    def exit_code(self, name: str) -> int | None:
        """None while the node is at work."""
        return self._processes[name].poll()

    def wait(self) -> dict[str, int]:
        """For the end of all; their exit codes."""
        self.wait_until(lambda: not self.are_running())
        return {name: process.returncode for name, process in self._processes.items()}

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Fails with what the nodes printed where that takes too long."""
        deadline = time.monotonic() + LONGEST_SECONDS
        while not holds():
            assert time.monotonic() < deadline, self.read_output()
            time.sleep(POLL_SECONDS)  # processes elsewhere write files

    def read_output(self) -> str:
        """What the nodes printed, and their ranks as far as the store has it."""
        logs = self.spec.open_store().list_keys(f"runs/{self.spec.run}/segments/{self.spec.fence:08d}/logs/")
        said = {key: self.spec.open_store().read(key).decode(errors="replace") for key in logs}
        said |= {name: self._file(name).read_text() for name in self._processes}
        return "\n".join(f"--- {name}\n{text}" for name, text in said.items())

    def kill(self, name: str) -> None:
        """SIGKILL for the node's own process, its agent and its ranks."""
        kill_tree(self._processes[name].pid)
        self._processes[name].wait()

    def end(self) -> None:
        """SIGKILL for all that is left."""
        for process in (*self._processes.values(), *self._let_go):
            kill_tree(process.pid)

    def let_go(self, name: str) -> "subprocess.Popen[bytes]":
        """The process of a node, which goes on; the name is free to be started again."""
        process = self._processes.pop(name)
        self._let_go.append(process)
        return process

    def stop(self, name: str) -> None:
        """SIGTERM, as before a time limit."""
        self._processes[name].terminate()

    def _file(self, name: str) -> Path:
        return self._output / f"{name}.txt"


@contextmanager
def running_nodes(
    spec: SegmentSpec,
    store: LocalStore,
    names: Sequence[str],
    output: Path,
    hosts: Hosts | None = None,
    notices: NoticesConfig | None = None,
    **own: Any,
) -> Iterator[Nodes]:
    """The nodes of these names at work for a segment, with `train.ranks` ranks each, until the block ends.

    On these `hosts`, where there are some. Each looks for these `notices`. `own` are fields of `[cluster]`.
    """
    cluster = ClusterConfig(kind="slurm", nodes=len(names), **own)
    notices = notices or NoticesConfig()
    write_order(store, JobOrder(segment=spec, cluster=cluster, grace_seconds=60, notices=notices))
    output.mkdir(exist_ok=True)
    nodes = Nodes(spec, names, output, hosts)
    try:
        for name in names:
            nodes.start(name)
        yield nodes
    finally:
        nodes.end()


def spec_of_nodes(spec: SegmentSpec, scratch: Path, num_nodes: int) -> SegmentSpec:
    """The same segment over so many nodes, as a part of a run's scratch."""
    folder = scratch / "runs" / spec.run / f"{spec.fence:08d}"
    train = spec.train.model_copy(update={"ranks": spec.train.ranks // num_nodes})
    return spec.model_copy(update={"scratch": str(folder), "train": train})
