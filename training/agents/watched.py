"""The ranks of one order, from their beginning to the end of the last one, as their agent watches them.

Invariant: each end is seen at once and written down, and the others leave when one has failed: asked first, killed when
their time is over. The same is done when whoever gave the order is gone.
"""

import os
import signal
import socket
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from training.agents.ends import RankEnd, RankEnds, find_failure, write_ends
from training.agents.forks import begin_rank
from training.agents.memory import OutOfMemoryKills
from training.agents.order import AgentOrder
from training.agents.rank import SIGNALS, be_a_rank
from training.agents.talk import Talk

WAIT_SECONDS = 1.0  # to see that a grace is over, or the supervisor gone; an end is a signal


class WatchedRanks:
    """The ranks of an order."""

    def __init__(self, path: Path, order: AgentOrder, supervisor: Talk) -> None:
        self._path, self._order, self._supervisor = path, order, supervisor
        self._running: dict[int, int] = {}  # their numbers by their processes
        self._ends = RankEnds()
        self._out_of_memory = OutOfMemoryKills()
        self._deadline: float | None = None
        self._has_killed = False

    def run(self) -> None:
        """Returns when the last rank has ended."""
        for local_rank in range(self._order.local_size):
            pid, reason = begin_rank(self._path, local_rank, partial(self._be_a_rank, local_rank))
            self._running[pid] = self._order.first_rank + local_rank
            if reason is not None and local_rank == 0:
                print(f"Ranks load their libraries anew: the agent cannot be forked, {reason}.", flush=True)
        while self._running:
            self._wait()

    def _be_a_rank(self, local_rank: int) -> NoReturn:
        self._supervisor.close()  # or it would look as if the agent lived as long as its ranks
        be_a_rank(self._order, local_rank)

    def _wait(self) -> None:
        """For the next end, or a request to stop, or a moment."""
        came = signal.sigtimedwait(SIGNALS, WAIT_SECONDS)
        is_asked = came is not None and came.si_signo != signal.SIGCHLD
        if is_asked or (self._deadline is None and self._supervisor.is_over()):
            self._ask_to_leave()
        self._reap()
        if self._deadline is not None and time.monotonic() > self._deadline and not self._has_killed:
            self._has_killed = True
            self._send(signal.SIGKILL)

    def _reap(self) -> None:
        for pid in list(self._running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._note(pid, os.waitstatus_to_exitcode(status))

    def _note(self, pid: int, code: int) -> None:
        rank = self._running.pop(pid)
        is_killed = code == -signal.SIGKILL
        end = RankEnd(
            rank=rank,
            pid=pid,
            host=socket.gethostname(),
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            is_out_of_memory=is_killed and not self._has_killed and self._out_of_memory.has_grown(),
            was_killed_by_agent=is_killed and self._has_killed,
            failure=find_failure(self._order.folder, rank) if code > 0 else None,
        )
        self._ends.ends.append(end)
        with suppress(OSError):  # on a full disk, or in a folder that is put away: the log has what ranks said
            write_ends(self._order.folder, self._ends)
        if end.is_fault and self._deadline is None:
            self._ask_to_leave()

    def _ask_to_leave(self) -> None:
        """However often it is asked for, the time to leave begins once."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._order.grace_seconds
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        for pid in self._running:  # none of them was reaped, so no number is another's
            os.kill(pid, number)
