"""Reading what the ranks report in their progress file.

Invariant: only whole lines are read; a line that is being written is read the next time.
"""

import os
from pathlib import Path

from pydantic import ValidationError

from training.metrics.reporter import Report

# Some hundreds of reports. In days of training the file grows to hundreds of megabytes.
LAST_BYTES = 1 << 18


class ReportFollower:
    """Reads the lines that came since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def read(self) -> list[Report]:
        """The new reports, oldest first; none while the file is not there yet."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        return [Report.model_validate_json(line) for line in whole.splitlines()]


def read_last_reports(path: Path) -> list[Report]:
    """The reports at the end of the file of ranks that are dead, oldest first; none where there is no file."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LAST_BYTES))
        data = file.read()
    reports = []
    for line in data.splitlines():
        try:
            reports.append(Report.model_validate_json(line))
        except ValidationError:
            continue  # the one in which these bytes begin, or that the kill cut off
    return reports
