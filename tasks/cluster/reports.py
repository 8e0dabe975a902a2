"""Reading what the ranks report in their progress file.

Invariant: only whole lines are read; a line that is being written is read the next time.
"""

from pathlib import Path

from training.metrics.reporter import Report


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
