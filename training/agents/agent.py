"""The agent of a node: `python -m training.agents.agent ORDER`. It begins ranks, watches them, and ends them.

Invariant: it loads what ranks need and computes nothing, so it has one thread and can be forked. It sees each end at
once, writes it down, and has the others leave when one has failed: asked first, killed when their time is over. When it
dies, Linux has its ranks save and leave.
"""

import os
import signal
import socket
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from storage.runs.holders import process_age_seconds
from training.agents.ends import RankEnd, RankEnds, find_failure, write_ends
from training.agents.locks import AGENT_LOCK, hold_lock
from training.agents.memory import OutOfMemoryKills
from training.agents.order import AgentOrder
from training.agents.rank import SIGNALS, be_a_rank
from training.agents.titles import name_process
from training.spec import SegmentSpec
from training.stopping import SUPERVISOR_VARIABLE

WAIT_SECONDS = 1.0  # to see that a grace is over; an end is a signal


class Agent:
    """The ranks of an order, from their beginning to the end of the last one."""

    def __init__(self, path: Path, order: AgentOrder) -> None:
        self._path, self._order = path, order
        self._running: dict[int, int] = {}  # their numbers by their processes
        self._ends = RankEnds()
        self._out_of_memory = OutOfMemoryKills()
        self._deadline: float | None = None
        self._has_killed = False

    def run(self) -> bool:
        """Returns when the last rank has ended; whether all left in good order."""
        # torch, seconds: only now, when signals wait and the lock is held.
        from training.agents.forks import begin_rank

        launched_at = time.clock_gettime(time.CLOCK_BOOTTIME) - process_age_seconds()
        for local_rank in range(self._order.local_size):
            pid, reason = begin_rank(self._path, local_rank, partial(be_a_rank, self._order, local_rank, launched_at))
            self._running[pid] = self._order.first_rank + local_rank
            if reason is not None and local_rank == 0:
                print(f"Ranks load their libraries anew: the agent cannot be forked, {reason}.", flush=True)
        while self._running:
            self._wait()
        return not any(end.is_fault for end in self._ends.ends)

    def _wait(self) -> None:
        """For the next end, or a request to stop, or a moment."""
        came = signal.sigtimedwait(SIGNALS, WAIT_SECONDS)
        if came is not None and came.si_signo != signal.SIGCHLD:
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


def _load_libraries(order: AgentOrder) -> None:
    """Load what the ranks will use, and call nothing of it."""
    spec = SegmentSpec.model_validate_json(order.specification.read_bytes())
    # Seconds: only now, when signals wait and the lock is held. And only one of them, as in a rank.
    if spec.work == "evaluate":
        import training.evaluation
    else:
        import training.segment  # noqa: F401


def main() -> None:
    """Exits with 1 if a rank did not leave in good order."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    path = Path(sys.argv[1])
    lock = hold_lock(path.parent / AGENT_LOCK)
    if str(os.getppid()) != os.environ[SUPERVISOR_VARIABLE]:
        raise SystemExit("What launched this agent was killed before it could begin.")
    name_process("holdfast-agent", f"holdfast agent {path}")
    order = AgentOrder.model_validate_json(path.read_bytes())
    _load_libraries(order)
    is_good = Agent(path, order).run()
    sys.stdout.flush()
    lock.close()
    os._exit(0 if is_good else 1)  # as a rank leaves


if __name__ == "__main__":
    main()
