"""Requests to stop, and how all ranks come to obey them at the same step.

Invariant: a signal handler sets a flag and does nothing else; the flags are compared by all ranks at step boundaries,
so that all of them stop, and save, after the same step. Imports nothing heavy: a rank listens before it loads torch.
"""

import ctypes
import os
import signal
import threading
import time
from enum import IntEnum
from pathlib import Path
from types import FrameType

# Names the process that supervises the ranks to them: it launched their agent.
SUPERVISOR_VARIABLE = "HOLDFAST_SUPERVISOR"
PARENT_SECONDS = 1.0
PR_SET_PDEATHSIG = 1  # prctl(2)
PF_EXITING = 4  # linux/sched.h
# Loaded with this module: between a fork and an exec, where `follow_parent` is called, loading could dead-lock.
_LIBC = ctypes.CDLL(None, use_errno=True)


class StopReason(IntEnum):
    """Why to stop; of several reasons the highest counts."""

    NONE = 0
    BUDGET = 1
    ABANDONED = 2  # SIGTERM from Linux: the launcher of the ranks, or the process that supervises it, was killed
    PREEMPTED = 3


class StopFlag:
    """What this rank knows about stopping: a signal that came, or a time budget that is spent."""

    def __init__(self) -> None:
        self.budget_ends: float | None = None  # by the machine's monotonic clock
        self._signal: int | None = None
        self._forebears: list[int] | None = None
        self._signal_reason: StopReason | None = None

    def listen(self) -> None:
        """Take SIGTERM and Ctrl-C as a notice, now and however often they come."""
        self._forebears = _find_forebears()
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def start_budget(self, seconds: float | None) -> None:
        """Stop when so many seconds have passed from now; None is no limit."""
        self.budget_ends = None if seconds is None else time.monotonic() + seconds

    @property
    def budget_seconds(self) -> float | None:
        """What is left of the budget; None is no limit."""
        return None if self.budget_ends is None else self.budget_ends - time.monotonic()

    def reason(self) -> StopReason:
        """The strongest reason to stop at the next boundary."""
        if self._signal is not None:
            # Judged when the signal is first seen: what passed a notice on may be killed while the ranks save.
            self._signal_reason = self._signal_reason or self._classify_signal()
            return self._signal_reason
        if self.budget_ends is not None and time.monotonic() >= self.budget_ends:
            return StopReason.BUDGET
        return StopReason.NONE

    def _classify_signal(self) -> StopReason:
        """A process that passes a notice on lives. When one is killed, Linux sends the signal: see `follow_parent`."""
        forebears = _find_forebears()
        is_abandoned = self._forebears is not None and (
            forebears != self._forebears or not _reach_supervisor(forebears)
        )
        return StopReason.ABANDONED if is_abandoned else StopReason.PREEMPTED

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signal = number


def stacks_file(folder: Path, rank: int) -> Path:
    """File for the stacks of a rank's threads, written when it gets SIGQUIT, below the folder of its specification."""
    return folder / f"stacks-{rank:04d}.txt"


def follow_parent(parent: int | None = None) -> None:
    """Ask Linux to send SIGTERM when the parent dies, so that no rank outlives a launcher that was killed.

    One that was killed before Linux was asked, while Python loaded, is noticed by whom this process is a child of now:
    not of `parent`, where its number is given, and not of a process below the supervisor otherwise. Then this process
    sends the signal to itself.

    SIGUSR1 and SIGUSR2, which a scheduler may send to each process of a job, are the parent's to answer: by default
    they would end this one, and all that it starts.
    """
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    if os.getppid() != parent if parent is not None else not _reach_supervisor(_find_forebears()):
        os.kill(os.getpid(), signal.SIGTERM)


def end_after_parent(seconds: float) -> None:
    """End this process so many seconds after its parent was killed, whatever it is at; or from now, if that is over.

    A rank that waits for another one's words takes notice of no signal, which Python hands on between two of its own
    instructions; and the one that it waits for may be on a machine that is gone.
    """
    parent = os.getppid()
    has_parent = _reach_supervisor(_find_forebears())  # asked after the line above: it may be killed at any moment

    def follow() -> None:
        while has_parent and os.getppid() == parent:
            time.sleep(PARENT_SECONDS)  # pidfd_open(2) would signal it, which the kernels of many a cluster do not have
        time.sleep(seconds)  # the rank's time to save and leave; if it does, the process ends and this with it
        text = f"What launched this rank was killed {seconds:g} s ago, and it has not left since: it ends.\n"
        os.write(2, text.encode())
        os._exit(1)

    threading.Thread(target=follow, name="parent", daemon=True).start()


def _find_forebears() -> list[int]:
    """This process's parent, its parent and so on up to the supervisor, but only as far as all of them live.

    Linux sends the signal when the thread that started a child ends. The process's other threads may need longer, and
    until the last one has ended it still is the parent: its first thread is a zombie already.
    """
    pid = os.getppid()
    supervisor = supervisor_pid()
    living = []
    while True:
        is_alive, parent = _read_process(pid)
        if is_alive:
            living.append(pid)
        if pid == supervisor or not is_alive:
            return living
        pid = parent


def _reach_supervisor(forebears: list[int]) -> bool:
    """Whether all live up to the supervisor: the child of a process that was killed is given to another one."""
    return forebears[-1:] == [supervisor_pid()]


def supervisor_pid() -> int:
    """The process that supervises this rank, by its number."""
    return int(os.environ.get(SUPERVISOR_VARIABLE, os.getppid()))


def _read_process(pid: int) -> tuple[bool, int]:
    """Whether its first thread lives and is not being killed, and its parent.

    SIGKILL ends a process thread by thread: the one that started this rank may be gone, and the signal here, before the
    first one had its turn on a busy processor, or while it gives gigabytes back.
    """
    try:
        # The process's name stands in parentheses and may hold anything; the third field follows it: proc_pid_stat(5).
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False, 0
    state, parent, flags, pending = (fields[number - 3] for number in (3, 4, 9, 31))
    is_killed = int(flags) & PF_EXITING or int(pending) & 1 << (signal.SIGKILL - 1)
    return state not in ("Z", "X") and not is_killed, int(parent)
