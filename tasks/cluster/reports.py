"""Reading what the ranks report in their progress file.

Invariant: only whole lines are read; a line that is being written is read the next time. What once is in a report, and
where a phase begins, is passed on; of plain progress the newest report is enough for who is far behind.
"""

import os
from pathlib import Path

from pydantic import ValidationError

from training.metrics.reporter import Report

# Some hundreds of reports. In days of training the file grows to hundreds of megabytes.
LAST_BYTES = 1 << 18
# Of one look. Ranks report twice a second.
MOST_REPORTS = 5_000


class ReportFollower:
    """Reads the lines that came since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def read(self) -> list[Report]:
        """The new reports, oldest first; none while the file is not there yet.

        Of many thousand, after this process was stopped for long, only those that say more than the one after them.
        """
        if not self._path.exists():
            return []
        reports: list[Report] = []
        most = MOST_REPORTS
        with self._path.open("rb") as file:
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._position += len(line)
                reports.append(Report.model_validate_json(line))
                if len(reports) == most:
                    reports = [*_that_say_more(reports[:-1]), reports[-1]]
                    most = len(reports) + MOST_REPORTS
        return reports


def is_event(report: Report) -> bool:
    """Whether it says something that no later report repeats."""
    return report.checkpoint is not None or report.note is not None or report.alarm is not None


def _that_say_more(reports: list[Report]) -> list[Report]:
    """Events, and the first report of each phase."""
    return [
        report
        for before, report in zip([None, *reports], reports, strict=False)
        if is_event(report) or before is None or before.phase != report.phase
    ]


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
