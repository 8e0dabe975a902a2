"""How long something has given no sign of life, by the clock of who watches it and by no other.

Invariant: a sign is compared with the one before, never read as a time: a wrong clock of a host changes nothing. Only
time between two looks that were both answered counts, and of a long gap between them only a part: a watcher that was
stopped together with what it watches, as on a machine that was frozen, has to look again before it calls that silent.
"""

from dataclasses import dataclass

SILENT_SECONDS = 60.0
# So much of the time between two looks counts at most.
MOST_BETWEEN_SECONDS = 30.0


@dataclass(frozen=True)
class Look:
    """One look: when it began and ended, in seconds of the watcher's monotonic clock, and what it found.

    `sign` changes as long as what is watched lives. None: there was no answer, or nothing to watch.
    """

    began: float
    ended: float
    sign: str | None


@dataclass(frozen=True)
class Silence:
    """For how many seconds a sign has stood still, and when the last look at it ended."""

    sign: str
    seconds: float
    seen_at: float

    @property
    def is_long(self) -> bool:
        """Whether what is watched counts as dead."""
        return self.seconds >= SILENT_SECONDS


def follow(before: Silence | None, look: Look) -> Silence | None:
    """The silence after one more look. None: nothing was seen, and the count begins anew."""
    if look.sign is None:
        return None
    if before is None or before.sign != look.sign:
        return Silence(look.sign, 0.0, look.ended)
    # From the end of the one look to the beginning of the other: the sign was read somewhere within each.
    between = max(0.0, look.began - before.seen_at)
    return Silence(look.sign, before.seconds + min(between, MOST_BETWEEN_SECONDS), look.ended)
