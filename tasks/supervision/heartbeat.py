"""The sign of life of a process that holds a run's lease.

Invariant: it beats in a thread of its own as long as the lease is held, also while gigabytes are hashed; and a store
that fails for a moment costs a beat, never the training.
"""

import time

from storage.errors import StoreError
from storage.runs.segments import Heartbeat as Beat
from storage.runs.segments import write_heartbeat
from tasks.background import BackgroundThread
from tasks.console.announce import warn
from tasks.run_paths import RunPaths
from training.metrics.reporter import Report

HEARTBEAT_SECONDS = 5.0


class Heartbeat(BackgroundThread):
    """A context manager. `hear` takes what the ranks report."""

    def __init__(self, run_paths: RunPaths, fence: int, first_step: int) -> None:
        super().__init__("heartbeat")
        self._seen = Beat(beat=0, step=first_step, written_at=time.time())
        self._run_paths = run_paths
        self._fence = fence
        self._beat = 0

    def hear(self, report: Report) -> None:
        """Take what the next beats report."""
        speed = report.throughput.samples_per_second if report.throughput else self._seen.samples_per_second
        self._seen = Beat(
            beat=0,
            step=report.step,
            phases=report.phases,
            loss=report.loss,
            samples_per_second=speed,
            validation=report.validation,
            written_at=self._seen.written_at,
        )

    def _accompany(self) -> None:
        while True:
            self._beat += 1
            try:
                write_heartbeat(
                    self._run_paths.store,
                    self._run_paths.manifest.run,
                    self._fence,
                    self._seen.model_copy(update={"beat": self._beat, "written_at": time.time()}),
                )
            except StoreError as error:
                warn(f"The heartbeat could not be written; the next one is due in {HEARTBEAT_SECONDS:.0f} s: {error}")
            if self._is_over.wait(HEARTBEAT_SECONDS):
                return
