"""The file in which the first rank reports, a line at a time.

Invariant: no step and no outcome record is lost because this file cannot be written, on a full disk for instance. What
of it must come is written with a later line, and a line of which a part was written is completed first.
"""

import os
from contextlib import suppress
from pathlib import Path


class ReportFile:
    """A file of lines that is followed while it is written."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._unwritten = b""

    def write(self, line: str, must_come: bool) -> None:
        """Append the line. Where that is not possible now, it is kept for the next call if it must come."""
        data = self._unwritten + line.encode() + b"\n"
        try:
            num_bytes = os.write(self._file.fileno(), data)
        except OSError:
            if must_come:
                self._unwritten = data
            return
        self._unwritten = data[num_bytes:]

    def close(self) -> None:
        """Nothing more is written."""
        with suppress(OSError):
            self._file.close()
