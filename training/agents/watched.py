"""The ranks of one order, from their beginning to the end of the last one, as their agent watches them.

Invariant: each end is seen at once and written down. When a signal ended one, the others go on where they can, and
another is begun in its place; when one has failed, the others leave: asked first, killed when their time is over. The
same is done when whoever gave the order is gone. Once one has left in good order, or was asked to, nobody is replaced.
"""

import os
import signal
import socket
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from training.agents.deadly import DeadlyMicrobatches
from training.agents.ends import RankEnd, RankEnds, find_failure, write_ends
from training.agents.forks import begin_rank
from training.agents.memory import OutOfMemoryKills
from training.agents.order import AgentOrder
from training.agents.rank import SIGNALS, be_a_rank
from training.agents.succession import Succession
from training.agents.talk import Talk
from training.meeting import forget_met, has_met
from training.places import Places
from training.views.view import LostMember, Member

WAIT_SECONDS = 1.0  # to see that a grace is over, or the supervisor gone; an end is a signal
# Those after which the others went on are of no use any more: more ranks than a machine has.
MOST_ENDS = 1_000
READY_SECONDS = 0.05  # to see that a rank is ready to join the others


class WatchedRanks:
    """The ranks of an order."""

    def __init__(self, path: Path, order: AgentOrder, supervisor: Talk, places: Places) -> None:
        self._path, self._order, self._supervisor, self._places = path, order, supervisor, places
        self._running: dict[int, Member] = {}  # by their processes
        self._ends = RankEnds()
        self._succession = Succession(order)
        self._deadly = DeadlyMicrobatches(places)
        self._out_of_memory = OutOfMemoryKills()
        self._deadline: float | None = None
        self._has_left = self._has_killed = False
        self._dismissed: set[Member] = set()
        self._is_incomplete = False

    def run(self) -> None:
        """Returns when the last rank has ended."""
        for member in self._succession.take_to_begin():
            forget_met(self._order.folder, member.slot)
            self._begin(member)
        while self._running:
            self._wait()

    def _begin(self, member: Member) -> None:
        local_rank = member.slot - self._order.first_rank
        be_a_rank = partial(self._be_a_rank, local_rank, member.life)
        pid, reason = begin_rank(self._path, local_rank, member.life, self._places.descriptor, be_a_rank)
        self._running[pid] = member
        if reason is not None and local_rank == 0:
            print(f"Ranks load their libraries anew: the agent cannot be forked, {reason}.", flush=True)

    def _be_a_rank(self, local_rank: int, life: int) -> NoReturn:
        self._supervisor.close()  # or it would look as if the agent lived as long as its ranks
        be_a_rank(self._order, local_rank, life, self._places.of(local_rank, life))

    def _wait(self) -> None:
        """For the next end, or a request to stop, or a moment."""
        came = signal.sigtimedwait(SIGNALS, READY_SECONDS if self._succession.is_under_way else WAIT_SECONDS)
        is_asked = came is not None and came.si_signo != signal.SIGCHLD
        self._succession.settle()  # before an end is seen: whether it was in a view says what that means
        self._reap()  # before the others are asked to leave: who died just before is done without, and they save
        if is_asked or (self._deadline is None and self._supervisor.is_over()):
            self._ask_to_leave()
        if self._goes_on:
            self._complete()
        if self._is_incomplete:
            self._end_those_who_wait()
        if self._deadline is not None and time.monotonic() > self._deadline and not self._has_killed:
            self._has_killed = True
            self._send(signal.SIGKILL)

    @property
    def _goes_on(self) -> bool:
        return self._deadline is None and not self._has_left

    def _reap(self) -> None:
        ends = []
        for pid in list(self._running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                member = self._running.pop(pid)
                ends.append((member, self._describe(member, pid, os.waitstatus_to_exitcode(status))))
        if ends:
            self._answer(ends)

    def _describe(self, member: Member, pid: int, code: int) -> RankEnd:
        is_killed = code == -signal.SIGKILL
        return RankEnd(
            rank=member.slot,
            pid=pid,
            host=socket.gethostname(),
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            is_out_of_memory=is_killed and not self._has_killed and self._out_of_memory.has_grown(),
            was_killed_by_agent=is_killed and (self._has_killed or member in self._dismissed),
            was_joining=not self._succession.has_been_in(member),
            failure=find_failure(self._order.folder, member.slot, pid) if code > 0 else None,
            place=self._places.find(member.slot - self._order.first_rank, member.life) if code < 0 else None,
        )

    def _answer(self, ends: list[tuple[Member, RankEnd]]) -> None:
        """Have the others go on, or leave, and write the ends down."""
        self._has_left = self._has_left or any(end.exit_code == 0 for _, end in ends)
        faults = [(member, end) for member, end in ends if end.is_fault and member not in self._dismissed]
        goes_on = not faults
        if faults and self._goes_on and not self._has_found_deadly(faults):
            goes_on = self._go_on_without(faults)
        for member, end in ends:
            is_survived = goes_on and (member, end) in faults
            self._ends.ends.append(end.model_copy(update={"place": None}) if is_survived else end)
        del self._ends.ends[:-MOST_ENDS]
        with suppress(OSError):  # on a full disk, or in a folder that is put away: the log has what ranks said
            write_ends(self._order.folder, self._ends)
        self._is_incomplete = self._is_incomplete or not goes_on
        if self._is_incomplete and self._deadline is None:
            self._ask_to_leave()
        if self._has_left:
            self._dismiss()

    def _has_found_deadly(self, faults: list[tuple[Member, RankEnd]]) -> bool:
        """Whether a microbatch has ended several ranks that computed it: the others would die of it, too."""
        for member, end in faults:
            words = None if self._succession.is_worn(member) else self._deadly.find(end)
            if words is not None:
                assert end.place is not None, "who was at no microbatch proves nothing of one"
                print(f"{words} All its rows: {list(end.place.rows)}", flush=True)
                self._ends.deadly = words
        return self._ends.deadly is not None

    def _go_on_without(self, faults: list[tuple[Member, RankEnd]]) -> bool:
        """Whether the others go on without those that met these."""
        if not all(self._succession.can_do_without(member, end.signal) for member, end in faults):
            return False
        lost = [LostMember(member=member, pid=end.pid, signal=end.signal or 0) for member, end in faults]
        self._succession.go_on_without(lost)
        return not self._succession.is_over

    def _complete(self) -> None:
        """Begin a rank in place of each that died, have those join that are ready, and replace one that is worn."""
        for member in self._succession.take_to_begin():
            self._begin(member)
        if self._succession.is_over:
            self._ask_to_leave()
            return
        worn = self._succession.find_worn()
        for pid, member in self._running.items():
            if member == worn:
                os.kill(pid, signal.SIGKILL)

    def _end_those_who_wait(self) -> None:
        """End ranks that have not met the others: they wait for one that is gone, and have nothing to save."""
        waiting = {m for m in self._running.values() if m.life == 0 and not has_met(self._order.folder, m.slot)}
        self._end(waiting - self._dismissed)

    def _ask_to_leave(self) -> None:
        """However often it is asked for, the time to leave begins once."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._order.grace_seconds
        self._dismiss()
        self._send(signal.SIGTERM)

    def _dismiss(self) -> None:
        """End those that were begun to join the others, and have not: they have nothing to save."""
        self._end(self._succession.withdraw() - self._dismissed)

    def _end(self, dismissed: set[Member]) -> None:
        self._dismissed |= dismissed
        for pid, member in self._running.items():
            if member in dismissed:
                os.kill(pid, signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        for pid in self._running:  # none of them was reaped, so no number is another's
            os.kill(pid, number)
