"""Which steps of each segment count and which are void, by the manifest.

Invariant: a step counts for one segment, the last one that trained it. What a segment trained after the point from
which a later one, or the next one to come, goes on is void: it was rolled back.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from storage.runs.ledger import LedgerPart
from storage.runs.run_state import RunState

PART_NAME = re.compile(r"(\d+)-(\d+)-f(\d+)\.parquet$")


@dataclass(frozen=True)
class _Segment:
    fence: int
    outcome: str
    world_size: int
    first_step: int
    last_step: int
    resume_step: int
    is_running: bool = False


class CountedSteps:
    """The manifest's segments, with the steps that count."""

    def __init__(self, state: RunState) -> None:
        self._promoted_step = state.promoted.step if state.promoted else 0
        self._segments = _segments_of(state)

    def of(self, fence: int) -> range | None:
        """The steps that count for the segment with this fence; None if there is no such segment."""
        for index, segment in enumerate(self._segments):
            if segment.fence == fence:
                later = [after.first_step for after in self._segments[index + 1 :]]
                end = min([segment.resume_step, self._promoted_step, *later])
                return range(segment.first_step, max(segment.first_step, end))
        return None

    def describe(self, fence: int) -> str:
        """Why what lies outside does not count, in words."""
        (segment,) = (segment for segment in self._segments if segment.fence == fence)
        counted = self.of(fence)
        assert counted is not None
        going_on = [after for after in self._segments if after.fence > fence and after.first_step <= counted.stop]
        text = f"it trained from step {segment.first_step:,} to step {segment.last_step:,}"
        if segment.last_step > counted.stop:
            text += f", was rolled back to step {counted.stop:,}"
        return text + (f", and segment {going_on[0].fence} continued from there." if going_on else ".")

    def table(self, counted: Iterable[LedgerPart], outside: Iterable[LedgerPart]) -> list[dict[str, Any]]:
        """For each segment the steps [a, b) that the ledger counts for it, and those that are void."""
        counted, outside = list(counted), list(outside)
        return [self._row(segment, counted, outside) for segment in self._segments]

    def is_pending(self, part: LedgerPart) -> bool:
        """Whether a part belongs to a checkpoint that the running segment has not promoted yet."""
        is_running = any(segment.is_running and segment.fence == part.fence for segment in self._segments)
        return is_running and part.first_step >= self._promoted_step

    def _row(self, segment: _Segment, counted: list[LedgerPart], outside: list[LedgerPart]) -> dict[str, Any]:
        own = [part for part in counted if part.fence == segment.fence]
        steps = self.of(segment.fence)
        assert steps is not None
        # A segment that vanished may have got further than its last sign of life: its parts know.
        ends = [part.end_step for part in outside if part.fence == segment.fence and not self.is_pending(part)]
        last_step = max([segment.last_step, *ends])
        return {
            "fence": segment.fence,
            "outcome": segment.outcome,
            "world_size": segment.world_size,
            "counted": [min(part.first_step for part in own), max(part.end_step for part in own)] if own else None,
            "void": [steps.stop, last_step] if last_step > steps.stop else None,
        }


def part_of_key(key: str) -> LedgerPart | None:
    """Segment and steps in the name of a part; for parts that nothing vouches for."""
    match = PART_NAME.search(key)
    if match is None:
        return None
    first_step, end_step, fence = map(int, match.groups())
    return LedgerPart(key=key, sha256="", num_bytes=0, fence=fence, first_step=first_step, end_step=end_step)


def _segments_of(state: RunState) -> list[_Segment]:
    segments = [
        _Segment(
            record.fence,
            record.outcome,
            record.world_size,
            record.first_step,
            record.last_step,
            record.last_step - record.steps_lost,
        )
        for record in state.segments
    ]
    lease = state.lease
    if lease is not None and lease.work == "train":
        # How far it got is not known here; what counts of it is what is promoted.
        step = max(lease.first_step, state.promoted.step if state.promoted else 0)
        segments.append(_Segment(lease.fence, "running", lease.world_size, lease.first_step, step, step, True))
    return segments
