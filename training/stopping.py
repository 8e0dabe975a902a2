"""Requests to stop, and how all ranks come to obey them at the same step.

Invariant: a signal handler sets a flag and does nothing else; the flags are compared by all ranks at step boundaries,
so that all of them stop, and save, after the same step. Imports nothing heavy: a rank listens before it loads torch.
"""

import ctypes
import signal
import time
from enum import IntEnum
from types import FrameType

PR_SET_PDEATHSIG = 1  # prctl(2)
# Loaded with this module: between a fork and an exec, where `follow_parent` is called, loading could dead-lock.
_LIBC = ctypes.CDLL(None, use_errno=True)


class StopReason(IntEnum):
    """Why to stop; of several reasons the highest counts."""

    NONE = 0
    BUDGET = 1
    PREEMPTED = 2


class StopFlag:
    """What this rank knows about stopping: a signal that came, or a time budget that is spent."""

    def __init__(self) -> None:
        self._deadline: float | None = None
        self._signal: int | None = None

    def listen(self) -> None:
        """Take SIGTERM and Ctrl-C as a notice, now and however often they come."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def start_budget(self, seconds: float | None) -> None:
        """Stop when so many seconds have passed from now; None is no limit."""
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def reason(self) -> StopReason:
        """The strongest reason to stop at the next boundary."""
        if self._signal is not None:
            return StopReason.PREEMPTED
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return StopReason.BUDGET
        return StopReason.NONE

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signal = number


def follow_parent() -> None:
    """Ask Linux to send SIGTERM when the parent dies, so that no rank outlives a launcher that was killed."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
