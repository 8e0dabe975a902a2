"""Ranks that live and do not get on: one waits for an answer that never comes, and all others wait for it.

Invariant: a segment is taken to hang only when its ranks reported nothing for so long; they are killed then, and since
none of them can speak any more, the outcome is put for them.
"""

import time

from storage.runs.segments import OutcomeRecord, write_outcome
from tasks.places import RunPlaces
from tasks.running.ranks import Ranks
from training.specification import SegmentSpec


class HangWatch:
    """Measures for how long the ranks of a segment have been silent."""

    def __init__(self, patience_seconds: float) -> None:
        self.last_step = 0
        self._patience_seconds = patience_seconds
        self._began = self._heard = time.monotonic()

    def heard(self, step: int) -> None:
        """The ranks reported something."""
        self.last_step = step
        self._heard = time.monotonic()

    def end_if_hung(self, places: RunPlaces, spec: SegmentSpec, ranks: Ranks) -> bool:
        """Kill the ranks and say why, if they were silent for too long; whether they were."""
        if time.monotonic() - self._heard < self._patience_seconds:
            return False
        ranks.kill()
        silence = f"{self._patience_seconds:g} s (segment.hang_seconds)"
        record = OutcomeRecord(
            outcome="failed",
            cause=f"The ranks reported nothing for {silence} and were killed.",
            first_step=self.last_step,
            last_step=self.last_step,
            world_size=spec.train.ranks,
            seconds=round(time.monotonic() - self._began, 3),
            phases={},
        )
        write_outcome(places.store, spec.run, spec.fence, record)
        return True
