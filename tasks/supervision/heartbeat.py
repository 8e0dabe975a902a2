"""The sign of life of a process that holds a run's lease.

Invariant: it beats in a thread of its own as long as the lease is held, also while gigabytes are hashed; and a store
that fails for a moment costs a beat, never the training.
"""

import time
from contextlib import suppress

from storage.errors import StoreError
from storage.runs.run_state import Lease
from storage.runs.segments import Heartbeat as Beat
from storage.runs.segments import write_heartbeat
from tasks.background import BackgroundThread
from tasks.console.announce import warn
from tasks.run_paths import RunPaths
from tasks.supervision.launch import find_folder
from training.metrics.reporter import Report
from training.views.account import all_views, describe_views
from training.views.folder import ViewFolder

HEARTBEAT_SECONDS = 5.0
MOST_VIEWS = 5  # at each end


class Heartbeat(BackgroundThread):
    """A context manager. `hear` takes what the ranks report; which of them died is in their folder on this machine."""

    def __init__(self, run_paths: RunPaths, lease: Lease) -> None:
        super().__init__("heartbeat")
        self._folder, self._num_files = find_folder(run_paths, lease), 0
        self._views: dict[str, object] = {}
        self._seen = Beat(beat=0, step=lease.first_step, written_at=time.time())
        self._run_paths = run_paths
        self._fence = lease.fence
        self._beat = 0

    def hear(self, report: Report) -> None:
        """Take what the next beats report."""
        speed = report.throughput.samples_per_second if report.throughput else self._seen.samples_per_second
        said = {name: getattr(report, name) for name in ("step", "phases", "loss", "validation")}
        self._seen = self._seen.model_copy(update={**said, "samples_per_second": speed})

    def _accompany(self) -> None:
        while True:
            self._beat += 1
            views = self._find_views()
            try:
                write_heartbeat(
                    self._run_paths.store,
                    self._run_paths.manifest.run,
                    self._fence,
                    self._seen.model_copy(update={"beat": self._beat, "written_at": time.time(), **views}),
                )
            except StoreError as error:
                warn(f"The heartbeat could not be written; the next one is due in {HEARTBEAT_SECONDS:.0f} s: {error}")
            if self._is_over.wait(HEARTBEAT_SECONDS):
                return

    def _find_views(self) -> dict[str, object]:
        """What is new of the ranks' views. On the nodes of a job they are not seen from here."""
        with suppress(OSError):  # the folder is put away when the segment is over
            folder = ViewFolder(self._folder)
            count = folder.count_files()
            if count != self._num_files:
                found = describe_views(all_views(folder), folder.find_out(), MOST_VIEWS)
                self._num_files = count
                self._views = {"views": found.records, "view_totals": found.totals}
        return self._views
