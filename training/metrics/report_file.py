"""The file in which the first rank reports, a line at a time.

Invariant: no step and no outcome record is lost because this file cannot be written, on a full disk for instance. What
of it must come is written with a later line, and a line of which a part was written is completed first.
"""

import os
from contextlib import suppress
from pathlib import Path

LONGEST_LINE_BYTES = 1 << 20


class ReportFile:
    """A file of lines that is followed while it is written."""

    def __init__(self, path: Path) -> None:
        with suppress(OSError):
            _complete(path)
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


def _complete(path: Path) -> None:
    """Take away a last line that was begun by a rank which is gone: nobody has read it. A device has no end."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        start = max(0, file.seek(0, os.SEEK_END) - LONGEST_LINE_BYTES)
        file.seek(start)
        end = file.read(LONGEST_LINE_BYTES)
    if not end.endswith(b"\n"):
        os.truncate(path, start + end.rfind(b"\n") + 1)
