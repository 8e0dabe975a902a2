"""A file as a notice: any process that can write one may announce the end of a machine.

Invariant: the file is only read; while it is there the notice stands, also for a segment that begins later.
"""

from pathlib import Path

from tasks.preemption.notice import Notice
from tasks.text import shortened

MAX_QUOTED_CHARACTERS = 200


class NoticeFile:
    """Its first line is quoted, whatever else is in it."""

    name = "The notice file"
    least_seconds: float | None = None

    def __init__(self, path: Path) -> None:
        self._path = path

    def look(self) -> Notice | None:
        try:
            with self._path.open(encoding="utf-8", errors="replace") as file:
                line = file.readline(MAX_QUOTED_CHARACTERS + 1).strip()
        except FileNotFoundError:
            return None
        content = f" and contains: {shortened(line, MAX_QUOTED_CHARACTERS)}" if line else ""
        return Notice(f"The notice file {self._path} is there{content}")
