"""Ranks that do not get on: one waits for an answer that never comes, and all others wait for it.

Invariant: ranks are taken to hang only when they made no step for so long, as far as their reports and those of
processes beside them show. The process that ends them reports for them: none of them can any more.
"""

import time
from collections.abc import Sequence

from storage.runs.segments import OutcomeRecord
from tasks.cluster.relay import STATUSES_SECONDS
from tasks.supervision.hang_diagnosis import Finding, HangDiagnosis
from training.metrics.reporter import Report
from training.rank_status import RankStatus

# Ranks that a machine or a network has left behind are waited for as long as for so many steps, and at least so long.
LOST_STEPS = 20
LEAST_LOST_SECONDS = 60.0
SILENT_SECONDS = 3 * STATUSES_SECONDS
# A process that did not look for so long stood still itself, and knows nothing of the ranks.
UNWATCHED_SECONDS = 10.0


class HangWatch:
    """Measures for how long the ranks have made no step, and finds out why."""

    def __init__(self, hang_seconds: float, lost_seconds: float | None = None, first_step: int = 0) -> None:
        """`lost_seconds` is for ranks of which it is certain that they will not get on; None: by their own steps."""
        self.last_step = first_step
        self.finding: Finding | None = None
        self.cause = ""
        self._hang_seconds = hang_seconds
        self._lost_seconds = lost_seconds
        self._longest_step: float | None = None
        self._diagnosis = HangDiagnosis()
        self._began = self._heard = self._asked = time.monotonic()
        self._look_at = 0.0

    def heard(self, report: Report) -> None:
        """The ranks reported something."""
        self.last_step = report.step
        self._longest_step = report.longest_step_seconds
        self._heard = time.monotonic()

    def cannot_hear(self) -> None:
        """No reports can come: the ranks wait in a queue, or the store does not answer."""
        self._heard = time.monotonic()
        self._diagnosis.forget_silence()

    def wants_statuses(self) -> bool:
        """Whether it is time to see where each rank is: often, while nothing is reported."""
        now = time.monotonic()
        is_due = now >= self._look_at and now - self._heard >= self._patience / 4
        if is_due:
            self._look_at = now + STATUSES_SECONDS
        return is_due

    def look(self, rank_statuses: Sequence[RankStatus]) -> None:
        """Take in where each rank is. Steps count also if the rank that reports them cannot be heard."""
        if self._diagnosis.look(rank_statuses):
            self._heard = time.monotonic()
        self.finding = self._diagnosis.explain(max(SILENT_SECONDS, self._patience / 2), self._patience)

    def is_hung(self) -> bool:
        """Whether they made no step for too long; `cause` is recorded for ranks that are killed for it."""
        now = time.monotonic()
        if now - self._asked > UNWATCHED_SECONDS:
            self._heard += now - self._asked
        self._asked = now
        quiet, finding = now - self._heard, self.finding
        if quiet >= self._hang_seconds:
            self.cause = self._describe(f"{self._hang_seconds:g} s (segment.hang_seconds)")
        elif finding is not None and finding.is_for_good and quiet >= self._patience:
            self.cause = self._describe(f"{self._patience:.0f} s ({self._describe_patience()})")
        return bool(self.cause)

    @property
    def _patience(self) -> float:
        """Seconds without a step that are enough for ranks which will not get on for certain."""
        wanted = self._lost_seconds
        if wanted is None and self._longest_step is not None:
            wanted = max(LEAST_LOST_SECONDS, LOST_STEPS * self._longest_step)
        return self._hang_seconds if wanted is None else min(wanted, self._hang_seconds)

    def _describe_patience(self) -> str:
        if self._lost_seconds is not None:
            return "segment.lost_seconds"
        return f"{LOST_STEPS} times their longest step of late, and at least {LEAST_LOST_SECONDS:.0f} s"

    def _describe(self, limit: str) -> str:
        why = f"{self.finding.words} " if self.finding is not None else ""
        return (
            f"{why}The ranks reported nothing for {limit} and were killed. Where each of them stood is at the end of "
            "the segment's log in the store."
        )

    def describe_end(self, world_size: int) -> OutcomeRecord:
        """The outcome of a segment that was ended for it, in place of the ranks' own."""
        return OutcomeRecord(
            outcome="failed",
            cause=self.cause,
            first_step=self.last_step,
            last_step=self.last_step,
            world_size=world_size,
            seconds=round(time.monotonic() - self._began, 3),
            phases={},
            is_hung=True,
        )
