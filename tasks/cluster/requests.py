"""What a node is asked for by signals.

Invariant: a handler only sets a flag; the node looks at it between two waits.
"""

import signal
from types import FrameType


class Requests:
    """To stop (SIGTERM): before the time limit, for another job, or because a user asked for it.

    To kill its ranks and wait for the next segment (SIGUSR1). To write the stacks of its ranks (SIGQUIT).
    """

    def __init__(self) -> None:
        self.is_stop = self.is_for_end = self.is_for_stacks = False

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGQUIT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.is_stop |= number == signal.SIGTERM
        self.is_for_end |= number == signal.SIGUSR1
        self.is_for_stacks |= number == signal.SIGQUIT
