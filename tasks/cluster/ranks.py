"""The processes of a segment on one machine: an agent and its ranks, until the last one has ended.

Invariant: no rank outlives the block that launched it, however the block is left; and each rank is asked to leave in
good order, and given the time for it, before it is killed.
"""

import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from storage.logs import LOG_NAME
from storage.objects.private_folder import PRIVATE_MODE
from tasks.cluster.processes import (
    KILLED_SECONDS,
    POLL_SECONDS,
    environment_of_installation,
    kill_tree,
)
from tasks.cluster.reports import ReportFollower
from training.agents.locks import find_holders
from training.agents.order import ORDER_NAME, AgentOrder
from training.configuration import TrainConfig
from training.determinism import numerics_environment
from training.meeting import Meeting
from training.metrics.rank_lines import prefix_of
from training.metrics.reporter import Report
from training.rank_status import RankStatus, read_rank_statuses
from training.spec import SegmentSpec
from training.stopping import SUPERVISOR_VARIABLE, follow_parent

SPECIFICATION_NAME = "segment.json"
AGENT_MODULE = "training.agents.agent"
# What allocators do with the pages of what is freed: each new one takes the kernel a microsecond or more. Arrow's keeps
# them for longer than from one row group of a bucket, or one block of microbatches, to the next; glibc's for good, up
# to a bound, or each step would begin with as many new pages as its gradients have. What a user has set stands.
ALLOCATOR = {
    "MIMALLOC_PURGE_DELAY": "10000",  # ms
    "MALLOC_MMAP_THRESHOLD_": str(2**28),  # bytes: what is larger is given back at once
    "MALLOC_TRIM_THRESHOLD_": str(2**30),  # bytes: more at the end of the heap is given back
}
# Threads that libraries would start when they are loaded: a process that has some cannot be forked.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
LOOPBACK = "lo"
STACKS_SECONDS = 2.0
RENDEZVOUS_FOLDER = "rendezvous"
MEETING_NAME = "ranks"
HELD = (
    "Ranks that were killed do not end: the kernel holds them, in a file system or a driver that does not answer (a "
    "file server that is away, a GPU that was lost). Nobody waits for them any longer. Look at `dmesg` on this machine."
)

_logger = logging.getLogger("holdfast")


@dataclass(frozen=True)
class Rendezvous:
    """This node among several, by its number, and where their ranks meet and over which interface they talk.

    `listening` is the first node's own socket at that address.
    """

    index: int
    num_nodes: int
    address: str
    port: int
    interface: str
    listening: int | None = None


class Ranks:
    """A `Job` on this machine: it works on a specification, with as many ranks as its `train` sets.

    An agent begins them, watches them and says how each of them ended. With a `rendezvous` they are the ranks of one
    node among several.
    """

    def __init__(self, spec: SegmentSpec, grace_seconds: float, rendezvous: Rendezvous | None = None) -> None:
        self._spec = spec
        self._grace_seconds = grace_seconds
        self._rendezvous = rendezvous
        self._stop_deadline: float | None = None
        # A folder of this user alone, and a file in it: a port could be reached by others.
        self._meeting_folder = spec.scratch_folder / f"{RENDEZVOUS_FOLDER}-{uuid.uuid4().hex}"
        self._order_file = spec.scratch_folder / ORDER_NAME
        # Where torch's compiler would keep what it makes, which a count of a model's memory loads too.
        compiler = {"TORCHINDUCTOR_CACHE_DIR": str(spec.scratch_folder / "compiler")}
        self._environment = compiler | _environment(spec.train, rendezvous)
        self._reports = ReportFollower(spec.progress_file)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        folder = self._spec.scratch_folder
        folder.mkdir(parents=True, exist_ok=True)
        self._meeting_folder.mkdir(mode=PRIVATE_MODE)
        (folder / SPECIFICATION_NAME).write_text(self._spec.model_dump_json(), encoding="utf-8")
        self._order_file.write_text(self._order().model_dump_json(), encoding="utf-8")
        listening = self._rendezvous.listening if self._rendezvous is not None else None
        with (folder / LOG_NAME).open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", AGENT_MODULE, str(self._order_file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,  # Ctrl-C in the terminal reaches the flow alone, which passes it on once
                preexec_fn=partial(follow_parent, os.getpid()),
                pass_fds=() if listening is None else (listening,),
            )
        return self

    def _order(self) -> AgentOrder:
        size, rendezvous = self._spec.train.ranks, self._rendezvous
        meeting = Meeting(file=self._meeting_folder / MEETING_NAME)
        if rendezvous is not None:
            meeting = Meeting(address=rendezvous.address, port=rendezvous.port, listening=rendezvous.listening)
        return AgentOrder(
            specification=self._spec.scratch_folder / SPECIFICATION_NAME,
            first_rank=size * (rendezvous.index if rendezvous is not None else 0),
            local_size=size,
            world_size=size * (rendezvous.num_nodes if rendezvous is not None else 1),
            meeting=meeting,
            grace_seconds=self._grace_seconds,
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        while self.is_running(POLL_SECONDS):
            if self._is_held():
                _logger.warning(HELD)
                return

    def is_running(self, wait_seconds: float) -> bool:
        """Wait a moment for the ranks to end, and kill them if their time to leave is over; whether any still runs."""
        process = self._launched()
        try:
            process.wait(wait_seconds)
        except subprocess.TimeoutExpired:
            if self._stop_deadline is not None and time.monotonic() > self._stop_deadline:
                self._kill_all()
            return True
        return False

    def read_reports(self) -> list[Report]:
        return self._reports.read()

    def read_rank_statuses(self) -> list[RankStatus]:
        return read_rank_statuses(self._spec.scratch_folder)

    def describe_wait(self) -> str | None:
        return None

    def describe_growth(self) -> str | None:
        return None

    def stop(self) -> None:
        """Ask the ranks to save and leave, once however often it is called."""
        if self._stop_deadline is not None:
            return
        self._stop_deadline = time.monotonic() + self._grace_seconds
        if self._launched().poll() is None:
            self._launched().send_signal(signal.SIGTERM)  # which the agent passes on

    def write_stacks(self) -> None:
        """By SIGQUIT. A rank that does not answer does not run: it was stopped, or the kernel holds it."""
        folder = self._spec.scratch_folder
        for holder in find_holders(folder):
            if holder.rank is not None:
                with suppress(ProcessLookupError):
                    os.kill(holder.pid, signal.SIGQUIT)
        time.sleep(STACKS_SECONDS)  # they do not signal that they are done
        with (folder / LOG_NAME).open("a") as log:
            for path in sorted(folder.glob("stacks-*.txt")):
                stacks = path.read_text(errors="replace") or f"nothing was written within {STACKS_SECONDS:.0f} s\n"
                rank = int(path.stem.rpartition("-")[2])
                log.writelines(
                    f"{prefix_of(rank)}{line}\n" for line in (f"stacks of rank {rank}:", *stacks.splitlines())
                )

    def kill(self) -> None:
        """SIGKILL for all of them, at once."""
        self._kill_all()
        try:
            self._launched().wait(KILLED_SECONDS)
        except subprocess.TimeoutExpired:
            _logger.warning(HELD)

    def leave(self) -> None:
        """Nothing: no other process can watch them."""

    def describe_end(self) -> str | None:
        return None

    def read_log(self) -> str:
        return (self._spec.scratch_folder / LOG_NAME).read_text(errors="replace")

    def _kill_all(self) -> None:
        """The agent with its ranks, and ranks whose agent is gone."""
        kill_tree(self._launched().pid)
        for holder in find_holders(self._spec.scratch_folder):
            kill_tree(holder.pid)

    def _is_held(self) -> bool:
        """Whether they were killed and do not end: the kernel has them, in a driver or a file system."""
        return self._stop_deadline is not None and time.monotonic() > self._stop_deadline + KILLED_SECONDS

    def _launched(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the ranks were not launched")
        return self._process


def _environment(train: TrainConfig, rendezvous: Rendezvous | None) -> dict[str, str]:
    """What agent, ranks and their libraries read when they start."""
    interface = LOOPBACK if rendezvous is None else rendezvous.interface
    return {
        **ALLOCATOR,
        **numerics_environment(environment_of_installation(), train.threads),
        **ONE_THREAD,
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait take a busy machine from those they wait for
        "GLOO_SOCKET_IFNAME": interface,
        **({} if rendezvous is None else {"NCCL_SOCKET_IFNAME": f"={interface}"}),  # with = it is no prefix
        "PYTHONUNBUFFERED": "1",
        "TORCH_DISTRIBUTED_DEBUG": "OFF",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        SUPERVISOR_VARIABLE: str(os.getpid()),
    }
