"""A microbatch that ends whoever computes it, told from deaths that strike where they will.

Invariant: it takes proof. Each process began the microbatch after the end of the one before was seen, was ended at it,
and none has computed it to its end. Two such deaths are enough where what ended them came of what they did; of signals
that somebody sent, as they are sent where machines are taken away, it takes three.
"""

import signal
import time

from training.agents.ends import RankEnd
from training.places import MicrobatchPlace, Places
from training.views.account import name_signal

# What the kernel or a library sends a process for what that does itself.
OWN_DOING = (
    signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS,
)  # fmt: skip
ENOUGH, ENOUGH_IF_SENT = 2, 3
MOST_ROWS = 20


class DeadlyMicrobatches:
    """The deaths of an order's ranks, by the microbatches that they were at."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._deaths: dict[tuple[int, int], list[RankEnd]] = {}
        self._last_seen: dict[tuple[int, int], float] = {}

    def find(self, end: RankEnd) -> str | None:
        """In words the microbatch that this end has proved deadly; None if it has proved none."""
        place = end.place
        if place is None:
            return None
        key = place.step, place.index
        if self._places.has_been_computed(place) or place.began_at < self._last_seen.get(key, 0.0):
            return None
        self._forget_before(place.step - 1)
        deaths = self._deaths.setdefault(key, [])
        deaths.append(end)
        self._last_seen[key] = time.monotonic()
        enough = ENOUGH if all(map(is_own_doing, deaths)) else ENOUGH_IF_SENT
        return _describe(place, deaths) if len(deaths) >= enough else None

    def _forget_before(self, step: int) -> None:
        """Ranks are a step apart at most, so nobody comes to microbatches of earlier steps again."""
        for key in [key for key in self._deaths if key[0] < step]:
            del self._deaths[key], self._last_seen[key]


def is_own_doing(end: RankEnd) -> bool:
    """Whether what ended the rank came of what it did, as far as can be seen."""
    return end.is_out_of_memory or end.signal in OWN_DOING


def _describe(place: MicrobatchPlace, deaths: list[RankEnd]) -> str:
    ended = ", then ".join(f"rank {end.rank} ({_cause_of(end)})" for end in deaths)
    rows = ", ".join(f"{row}" for row in place.rows[:MOST_ROWS])
    more = f" and {len(place.rows) - MOST_ROWS:,} more" if len(place.rows) > MOST_ROWS else ""
    return (
        f"Microbatch {place.index} of the step after step {place.step:,} ended each rank that computed it: {ended}. It "
        f"has the rows {rows}{more} of the training split. Look at them: a text may be too long for this machine's "
        "memory, or a value break a library. A machine with more memory, or with other libraries, goes on with "
        "`holdfast run`; to train without these rows, leave them out of the data and begin a new run."
    )


def _cause_of(end: RankEnd) -> str:
    return "no memory left" if end.is_out_of_memory else name_signal(end.signal or 0)
