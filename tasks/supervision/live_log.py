"""The log of ranks on this machine, in the store while they work; nodes of a cluster pass theirs on by themselves.

Invariant: it goes there in a thread of its own, which is not waited for while ranks train; a store that fails costs a
log its punctuality. When the block is left the newest part of the log is in the store, or a warning was given.
"""

from storage.errors import StoreError
from storage.logs import LOG_NAME, write_log
from storage.runs.run_state import Lease
from tasks.background import BackgroundThread
from tasks.console.announce import warn
from tasks.run_paths import RunPaths
from tasks.supervision.launch import find_folder

LOG_SECONDS = 5.0


class LiveLog(BackgroundThread):
    """A context manager around the ranks of a lease. Where they print elsewhere, it finds no file and does nothing."""

    def __init__(self, run_paths: RunPaths, lease: Lease) -> None:
        super().__init__("live-log")
        self._run_paths, self._fence = run_paths, lease.fence
        self._file = find_folder(run_paths, lease) / LOG_NAME
        self._num_bytes = 0

    def _accompany(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._is_over.wait(LOG_SECONDS)  # and once more at last: ranks print why they end
            try:
                self._pass_on()
            except (StoreError, OSError) as error:
                warn(f"What the ranks print could not be put into the store, and is put again: {error}")

    def _pass_on(self) -> None:
        size = self._file.stat().st_size if self._file.exists() else 0
        if size != self._num_bytes:
            self._num_bytes = write_log(self._run_paths.store, self._run_paths.manifest.run, self._fence, self._file)
