"""What a rank prints, line by line, each with the rank in front: all ranks of a machine share one log.

Invariant: a line is written in one piece, so lines of two ranks never mix; and one that cannot be written, on a full
disk, is left out, and training goes on. What libraries print from C does not come through here, and has what they put
in front of it.
"""

import io
import sys
import threading
from contextlib import suppress
from typing import TextIO


def prefix_of(rank: int) -> str:
    """What a line of this rank begins with; torch begins its own lines in the same way."""
    return f"[rank{rank}]: "


class RankLines(io.TextIOWrapper):
    """A stream on the bytes of another one, which it replaces."""

    def __init__(self, rank: int, stream: TextIO) -> None:
        super().__init__(stream.buffer, encoding="utf-8", errors="backslashreplace", newline="\n", write_through=True)
        self._original = stream  # which closes the file when it is no longer referenced
        self._prefix = prefix_of(rank)
        self._begun = ""
        self._lock = threading.RLock()  # a signal's handler may print while its own thread does

    def write(self, text: str, /) -> int:
        with self._lock:
            *whole, self._begun = (self._begun + text).split("\n")
            if not whole:
                return len(text)
            with suppress(OSError):
                super().write("".join(f"{self._prefix}{line}\n" for line in whole))
        return len(text)

    def flush(self) -> None:
        """Ends a line that was begun: who asks for this wants it to be seen, and other ranks print meanwhile."""
        with self._lock:
            if self._begun:
                self.write("\n")
            with suppress(OSError):
                super().flush()


def name_own_lines(rank: int) -> None:
    """Put the rank in front of each line that this process prints from here on."""
    sys.stdout, sys.stderr = RankLines(rank, sys.stdout), RankLines(rank, sys.stderr)
