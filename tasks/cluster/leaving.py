"""Which nodes of a segment were asked to leave, and whether this one leaves alone or all save and leave together.

A machine that is taken away is announced to its own node, so the others need not stop. Invariant: nobody leaves alone
if the segment could not go on without it, and a node that was asked to leave is not among those that others count on.
A request to the whole job reaches its nodes one after the other: so each waits a moment for what the others were asked.
"""

import time
from collections.abc import Callable, Collection
from enum import Enum, auto

# Schedulers signal all nodes of a job within it, and each tells the others.
HEARING_SECONDS = 1.0
# A view that is not decided in so long, as when the store is away, is waited for no more: there is little time.
DECIDING_SECONDS = 5.0


class Way(Enum):
    """How a node leaves."""

    STAY = auto()  # it was not asked to
    UNDECIDED = auto()
    ALONE = auto()
    TOGETHER = auto()


class Leaving:
    """What this node was asked, and what it heard of others. `is_enough` says of how many nodes a segment can go on."""

    def __init__(self, is_enough: Callable[[int], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._is_enough, self._clock = is_enough, clock
        self._asked: set[int] = set()
        self._asked_at: float | None = None
        self._together = False

    @property
    def is_asked(self) -> bool:
        """Whether this node was asked to leave."""
        return self._asked_at is not None

    def ask(self) -> None:
        """Note that this node was asked to leave."""
        if self._asked_at is None:
            self._asked_at = self._clock()

    def note(self, node: int) -> None:
        """Note that another node was."""
        self._asked.add(node)

    def forget(self, node: int) -> None:
        """Another process has the number of this node."""
        self._asked.discard(node)

    def decide(self, own: int, nodes: Collection[int]) -> Way:
        """How this node, by its number, leaves the `nodes` of the newest view; once it is together, it stays so."""
        if self._asked_at is None:
            return Way.STAY
        if own not in nodes:
            return Way.ALONE
        others = set(nodes) - {own}
        staying = others - self._asked
        seconds = self._clock() - self._asked_at
        is_over = seconds >= HEARING_SECONDS + DECIDING_SECONDS
        self._together = self._together or is_over or not self._is_enough(len(staying))
        if self._together:
            return Way.TOGETHER
        return Way.ALONE if seconds >= HEARING_SECONDS else Way.UNDECIDED
