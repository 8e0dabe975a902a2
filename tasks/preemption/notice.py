"""What announces the end of a machine, as a segment sees it: `look` from time to time, and a notice if there is one.

Invariant: looking changes nothing where the notice comes from, and takes seconds at most. Of every implementation holds
what `tests/integration/test_notices.py` asks.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Notice:
    """`words` are a sentence without its full stop: who announces what. They stay the same from look to look.

    `seconds_left` is None where it is unknown. One that does not end the machine is logged and not obeyed.
    """

    words: str
    seconds_left: float | None = None
    ends_machine: bool = True


class NoticeSource(Protocol):
    """One who may announce it. `least_seconds` is what its notices leave at least, as documented; None: unknown."""

    name: str
    least_seconds: float | None

    def look(self) -> Notice | None:
        """The notice that stands now. Raises `OSError` or `ValueError`, in words, if nothing can be learnt."""
