"""Following a run from beside it, segment after segment, on the machine where its ranks are.

Invariant: only segments that begin after the look began are followed.
"""

from tasks.cluster.reports import ReportFollower
from tasks.run_paths import RunPaths
from training.metrics.reporter import Report


class RunFollower:
    """Reads the reports of the segments that a run begins from now on; only where they run, in scratch."""

    def __init__(self, run_paths: RunPaths) -> None:
        self._run_paths = run_paths
        self._old_fences = set(self._fences())
        self._reports: ReportFollower | None = None
        self.fence: int | None = None
        self.first_step: int | None = None

    def read(self) -> list[Report]:
        """The new reports of the newest segment, oldest first.

        `fence` is its fence, and `first_step` the one it trains from; None before they are known.
        """
        newest = max(self._fences() - self._old_fences, default=None)
        if newest is not None and newest != self.fence:
            self.fence, self.first_step = newest, None
            self._reports = ReportFollower(self._run_paths.segment_scratch(newest) / "progress.jsonl")
        try:
            reports = self._reports.read() if self._reports is not None else []
        except FileNotFoundError:
            return []  # the segment ended just now, and its supervisor put its folder away
        if self.first_step is None:
            self.first_step = next((report.step for report in reports if report.phase == "train"), None)
        return reports

    def _fences(self) -> set[int]:
        return {int(folder.name) for folder in self._run_paths.scratch.glob("*") if folder.name.isdigit()}
