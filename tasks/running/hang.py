"""Ranks that live and do not get on: one waits for an answer that never comes, and all others wait for it.

Invariant: ranks are taken to hang only when they reported nothing for so long. Who ends them speaks for them: none of
them can any more.
"""

import time

from storage.runs.segments import OutcomeRecord


class HangWatch:
    """Measures for how long the ranks have been silent."""

    def __init__(self, patience_seconds: float, first_step: int = 0) -> None:
        self.last_step = first_step
        self._patience_seconds = patience_seconds
        self._began = self._heard = time.monotonic()

    def heard(self, step: int) -> None:
        """The ranks reported something."""
        self.last_step = step
        self._heard = time.monotonic()

    def is_hung(self) -> bool:
        """Whether they were silent for too long."""
        return time.monotonic() - self._heard >= self._patience_seconds

    @property
    def cause(self) -> str:
        """What is to be said of ranks that were killed for it."""
        return (
            f"The ranks reported nothing for {self._patience_seconds:g} s (segment.hang_seconds) and were killed. "
            "Where each of them stood is at the end of the segment's log in the store."
        )

    def describe_end(self, world_size: int) -> OutcomeRecord:
        """The outcome of a segment that was ended for it, in place of the ranks' own words."""
        return OutcomeRecord(
            outcome="failed",
            cause=self.cause,
            first_step=self.last_step,
            last_step=self.last_step,
            world_size=world_size,
            seconds=round(time.monotonic() - self._began, 3),
            phases={},
        )
