"""A command that is asked to end: by Ctrl-C, or by SIGTERM as a service or a scheduler sends it.

Invariant: everything is put away, and the exit code is 128 plus the signal's number.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ending_in_order() -> Iterator[None]:
    """A block that either signal leaves as an exit, where by default SIGTERM would end the process on the spot."""
    before = signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before)
