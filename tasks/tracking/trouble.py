"""Warning that a tracker does not take what it is sent: once in a process until the tracker answers again.

Invariant: the same trouble, segment after segment and at the end of the flow, is one warning.
"""

from collections.abc import Callable
from threading import Lock

CONSEQUENCE = (
    "The run goes on as ever. What the tracker misses is sent later: with a promotion, by the next segment, at the end "
    "of the flow, or when the same command is run again."
)

Warn = Callable[[str], None]

_lock = Lock()
_warned: set[str] = set()


def warn_of_trouble(address: str, why: object, warn: Warn) -> None:
    """Warn, unless this was done since the tracker at `address` last answered."""
    with _lock:
        is_known = address in _warned
        _warned.add(address)
    if not is_known:
        warn(f"{why} {CONSEQUENCE}")


def has_recovered(address: str) -> None:
    """It has taken all that there was: the next trouble is logged again."""
    with _lock:
        _warned.discard(address)
