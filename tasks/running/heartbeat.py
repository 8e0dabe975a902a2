"""The sign of life of a process that holds a run's lease.

Invariant: it beats in a thread of its own as long as the lease is held, also while gigabytes are hashed; and a store
that fails for a moment costs a beat, never the training.
"""

import time

from storage.errors import StoreError
from storage.runs.segments import Heartbeat as Beat
from storage.runs.segments import write_heartbeat
from tasks.beside.companion import Companion
from tasks.places import RunPlaces
from tasks.telling.announce import warn

HEARTBEAT_SECONDS = 5.0


class Heartbeat(Companion):
    """A context manager. `step` and `phases` are what the ranks reported last; whoever knows them sets them."""

    def __init__(self, places: RunPlaces, fence: int, first_step: int) -> None:
        super().__init__("heartbeat")
        self.step = first_step
        self.phases: dict[str, float] = {}
        self._places = places
        self._fence = fence
        self._beat = 0

    def _accompany(self) -> None:
        while True:
            self._beat += 1
            try:
                write_heartbeat(
                    self._places.store,
                    self._places.manifest.run,
                    self._fence,
                    Beat(beat=self._beat, step=self.step, phases=self.phases, written_at=time.time()),
                )
            except StoreError as error:
                warn(f"The heartbeat could not be written; the next one is due in {HEARTBEAT_SECONDS:.0f} s: {error}")
            if self._is_over.wait(HEARTBEAT_SECONDS):
                return
