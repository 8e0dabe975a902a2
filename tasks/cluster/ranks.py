"""The processes of a segment on one machine: an agent and its ranks, until the last one has ended.

Invariant: no rank outlives the block that launched it, however the block is left; and each rank is asked to leave in
good order, and given the time for it, before it is killed.
"""

import logging
import os
import signal
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from storage.logs import LOG_NAME
from storage.objects.private_folder import PRIVATE_MODE
from tasks.cluster.agents import AgentProcess, KeptAgent
from tasks.cluster.processes import KILLED_SECONDS, POLL_SECONDS, kill_tree
from tasks.cluster.rank_environment import environment_of_ranks
from tasks.cluster.reports import ReportFollower
from training.agents.locks import find_holders
from training.agents.order import ORDER_NAME, AgentOrder
from training.meeting import Address, Meeting
from training.metrics.rank_lines import prefix_of
from training.metrics.reporter import Report
from training.rank_status import RankStatus, read_rank_statuses
from training.spec import SegmentSpec

SPECIFICATION_NAME = "segment.json"
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

    `listening` is the first node's own socket at that address. `nodes` are all that met, in the order of their numbers,
    with the addresses at which they answer about the `segment`; `ear` is this one's. Of a node that came later its
    ranks begin with `first_life`, and meet the others in a view.
    """

    index: int
    num_nodes: int
    address: str
    port: int
    interface: str
    listening: int | None = None
    nodes: Mapping[str, Address] = field(default_factory=dict)
    ear: Address | None = None
    segment: str = ""
    first_life: int = 0


class Ranks:
    """A `Job` on this machine: it works on a specification, with as many ranks as its `train` sets.

    An agent begins them, watches them and says how each of them ended: the one that is `kept`, or one for this order
    alone. With a `rendezvous` they are the ranks of one node among several.
    """

    def __init__(
        self,
        spec: SegmentSpec,
        grace_seconds: float,
        rendezvous: Rendezvous | None = None,
        kept: KeptAgent | None = None,
    ) -> None:
        self._spec = spec
        self._grace_seconds = grace_seconds
        self._rendezvous = rendezvous
        self._kept = kept
        self._stop_deadline: float | None = None
        # A folder of this user alone, and a file in it: a port could be reached by others.
        self._meeting_folder = spec.scratch_folder / f"{RENDEZVOUS_FOLDER}-{uuid.uuid4().hex}"
        self._order_file = spec.scratch_folder / ORDER_NAME
        self._reports = ReportFollower(spec.progress_file)
        self._agent: AgentProcess | None = None
        # Of an order that nobody took nothing was begun: an agent that is kept may have been killed just before.
        self._may_begin_again = kept is not None
        self._killed_at: float | None = None
        self._is_given_up = False

    def __enter__(self) -> Self:
        folder = self._spec.scratch_folder
        folder.mkdir(parents=True, exist_ok=True)
        self._meeting_folder.mkdir(mode=PRIVATE_MODE)
        (folder / SPECIFICATION_NAME).write_text(self._spec.model_dump_json(), encoding="utf-8")
        self._order_file.write_text(self._order().model_dump_json(), encoding="utf-8")
        (folder / LOG_NAME).touch()
        self._launch()
        return self

    def _launch(self) -> None:
        if self._kept is not None:
            self._agent = self._kept.take(self._spec.train, self._spec.model.kind)
        else:
            interface = self._rendezvous.interface if self._rendezvous is not None else None
            listening = self._rendezvous.listening if self._rendezvous is not None else None
            environment = environment_of_ranks(self._spec.train, interface)
            self._agent = AgentProcess(environment, descriptors=() if listening is None else (listening,))
        self._agent.give(self._order_file, self._spec.scratch_folder / LOG_NAME)

    def _order(self) -> AgentOrder:
        size, rendezvous = self._spec.train.ranks, self._rendezvous
        meeting = Meeting(file=self._meeting_folder / MEETING_NAME)
        if rendezvous is not None:
            meeting = Meeting(
                address=rendezvous.address,
                port=rendezvous.port,
                listening=rendezvous.listening,
                ear=rendezvous.ear,
                segment=rendezvous.segment,
            )
        return AgentOrder(
            specification=self._spec.scratch_folder / SPECIFICATION_NAME,
            first_rank=size * (rendezvous.index if rendezvous is not None else 0),
            local_size=size,
            world_size=size * (rendezvous.num_nodes if rendezvous is not None else 1),
            first_life=rendezvous.first_life if rendezvous is not None else 0,
            meeting=meeting,
            grace_seconds=self._grace_seconds,
            launched_at=time.clock_gettime(time.CLOCK_BOOTTIME),
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        while self.is_running(POLL_SECONDS):
            pass
        if self._kept is None:
            self._launched().close()

    def is_running(self, wait_seconds: float) -> bool:
        """Wait a moment for the ranks to end, and kill them if their time to leave is over; whether any still runs.

        Those that were killed and do not end, since the kernel holds them, count as ended after a while. None of their
        instructions is executed any more: at most the call of the kernel that they are in takes effect late, which puts
        a file of their own fence, whole, or not at all.
        """
        if self._launched().is_at_work(wait_seconds):
            # Not by the deadline: who supervises may come late to it, and find ranks that nobody has killed.
            if self._killed_at is not None and time.monotonic() - self._killed_at > KILLED_SECONDS:
                self._give_up()
                return False
            if self._stop_deadline is not None and time.monotonic() > self._stop_deadline:
                self._kill_all()
            return True
        if self._launched().has_taken or not self._may_begin_again:
            return False
        self._may_begin_again = False
        self._launch()
        return True

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
        self._may_begin_again = False
        self._launched().ask_to_leave()

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
        if not self._launched().wait(KILLED_SECONDS):
            self._give_up()

    def leave(self) -> None:
        """Nothing: no other process can watch them."""

    def describe_end(self) -> str | None:
        return None

    def read_log(self) -> str:
        return (self._spec.scratch_folder / LOG_NAME).read_text(errors="replace")

    def _kill_all(self) -> None:
        """The agent with its ranks, and ranks whose agent is gone."""
        self._may_begin_again = False
        kill_tree(self._launched().pid)
        for holder in find_holders(self._spec.scratch_folder):
            kill_tree(holder.pid)
        if self._killed_at is None:
            self._killed_at = time.monotonic()

    def _give_up(self) -> None:
        """Say once that the kernel has them, in a driver or a file system."""
        if not self._is_given_up:
            self._is_given_up = True
            _logger.warning(HELD)

    def _launched(self) -> AgentProcess:
        if self._agent is None:
            raise RuntimeError("the ranks were not launched")
        return self._agent
