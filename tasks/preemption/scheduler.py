"""SIGUSR1 and SIGUSR2: what Slurm and other schedulers are configured to send before they end a job.

Invariant: for as long as the block lasts neither ends this process, and its handler sets a flag and does nothing else:
an exception that is raised by one is lost where it meets a destructor. Unlike SIGTERM they have no other handler;
Prefect has no handler for them.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from tasks.preemption.notice import Notice

SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)


def leave_on_scheduler_signals() -> None:
    """From now on, while no block below is under way: an exit, which lets everything be put away."""
    for number in SIGNALS:
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))


class SchedulerSignals:
    """One that came since `heard` began is a notice."""

    name = "SIGUSR1 and SIGUSR2"
    least_seconds: float | None = None

    def __init__(self) -> None:
        self._came: list[int] = []

    def look(self) -> Notice | None:
        if not self._came:
            return None
        name = signal.Signals(self._came[0]).name
        return Notice(f"{name} came, by which a scheduler announces the end of a job")

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Hear them while the block lasts. Only the main thread can: in others nothing is done."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._came.append(number)
