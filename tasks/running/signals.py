"""Requests to stop while a segment runs.

Invariant: inside the block a signal only calls `on_stop`; it never breaks a commit in the middle. When the block is
left the signal is delivered again, to whoever would have got it, so that the flow ends as cancelled.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_stop_signals(on_stop: Callable[[], None]) -> Iterator[None]:
    """Hold SIGTERM and Ctrl-C back until the block is left. Only the main thread has signals to hold back.

    What is ignored stays ignored: in the background of a script Ctrl-C is meant for others.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        on_stop()

    heeded = [number for number in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, remember) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if received:  # also when the block failed: whoever asked to stop does not want another attempt
            signal.raise_signal(received[0])
