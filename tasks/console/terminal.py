"""The one console for what happens, so that bars and messages do not write over each other; and stdout, for results.

Invariant: what is printed is text: a path with `[red]` or `:cat:` in it is shown as it is. Where there is no terminal,
lines are whole, however long, and end where their text does. A line of what happens that cannot be written is lost, and
the command goes on; a result that cannot be written is an error.
"""

import io
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

WHOLE_LINE = 100_000

console = Console(stderr=True, highlight=False, markup=False, emoji=False)


class LossyOutput(io.RawIOBase):
    """A file of which a line is lost where it cannot be written: its disk is full, or nobody reads any more."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        try:
            return os.write(self._descriptor, data)
        except OSError:
            return len(data)


def lose_what_cannot_be_shown() -> None:
    """From now on nothing ends because stderr cannot be written; what is said on a closed one goes nowhere."""
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - it lives as long as the process
    elif isinstance(sys.stderr, io.TextIOWrapper):  # not where a program has put a stream of its own in its place
        lossy = io.BufferedWriter(LossyOutput(sys.stderr.fileno()))
        sys.stderr = io.TextIOWrapper(lossy, sys.stderr.encoding, "backslashreplace", line_buffering=True)


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
