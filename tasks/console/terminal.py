"""The one console for what happens, so that bars and messages do not write over each other; and stdout, for results.

Invariant: what is printed is text: a path with `[red]` or `:cat:` in it is shown as it is. Where there is no terminal,
lines are whole, however long, and end where their text does. What cannot be written is lost, and nothing ends by that:
who prints a result asks afterwards whether it was.
"""

import io
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, RenderableType

WHOLE_LINE = 100_000

console = Console(stderr=True, highlight=False, markup=False, emoji=False)


class LossyOutput(io.RawIOBase):
    """A file of which a line is lost where it cannot be written: its disk is full, or nobody reads any more.

    `error` is why the first one was.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.error: OSError | None = None

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        try:
            return os.write(self._descriptor, data)
        except OSError as error:
            self.error = self.error or error
            return len(data)


def lose_what_cannot_be_shown() -> None:
    """From now on nothing ends because stdout or stderr cannot be written; what is said on a closed one goes nowhere.

    What a terminal's encoding does not have is written as its number.
    """
    sys.stdout, sys.stderr = _lossy(sys.stdout), _lossy(sys.stderr)


def find_loss() -> OSError | None:
    """Why something that this process has printed on stdout is lost; None if nothing is."""
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw.error if isinstance(raw, LossyOutput) else None


def _lossy(stream: TextIO | None) -> TextIO:
    if stream is None:  # it was closed, as by `>&-`
        return Path(os.devnull).open("w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):  # a program has put a stream of its own in its place
        return stream
    lossy = io.BufferedWriter(LossyOutput(stream.fileno()))
    is_whole = stream.line_buffering or stream is sys.stderr
    return io.TextIOWrapper(lossy, stream.encoding, "backslashreplace", line_buffering=is_whole)


def print_content(content: RenderableType) -> None:
    """Print to stdout what a command has found."""
    terminal = Console(highlight=False, markup=False, emoji=False)
    if terminal.is_terminal:
        terminal.print(content, crop=False)  # a path that is cut off is of no use
        return
    whole = Console(file=io.StringIO(), width=WHOLE_LINE, highlight=False, markup=False, emoji=False)
    with whole.capture() as captured:
        whole.print(content)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))
