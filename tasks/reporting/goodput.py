"""Goodput: the share of the time since a run began in which steps were made that its weights still have.

Invariant: the parts add up to all of the time, and what no record accounts for is a part of its own. What a wrong clock
dated or measured is named, and left out. What a segment
that was lost did not report, its waiting for samples or all of its phases, follows from the other segments.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from itertools import pairwise

from storage.runs.run_state import RunState, SegmentRecord
from tasks.text import duration, moment

PART_NAMES = {
    "useful": "steps that count",
    "again": "steps that were lost",
    "input_wait": "waiting for samples",
    "without_rank": "standing still after a rank died",
    "start": "starting",
    "restore": "restoring",
    "validate": "validating",
    "save": "saving",
    "unknown": "in segments, not recorded",
    "between": "between segments",
}
# Before any run of Holdfast. A machine without the time begins in 1970.
EARLIEST = datetime(2024, 1, 1, tzinfo=UTC).timestamp()
# Clocks of machines that are set by the network differ by less.
CLOCK_SECONDS = 60.0
_OVERHEADS = ("start", "restore", "validate", "save")


@dataclass(frozen=True)
class TimeSpent:
    """Seconds from a run's beginning to the end of its last segment."""

    useful: float  # making steps that the weights of the resume point have
    again: float  # making steps that were lost, or left out by a rollback
    input_wait: float
    without_rank: float  # from a death until the others trained on
    start: float
    restore: float
    validate: float
    save: float
    unknown: float
    between: float  # no training: no machine, or processes that were being started

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    @property
    def goodput(self) -> float:
        """From 0 to 1."""
        return self.useful / self.total

    @property
    def parts(self) -> dict[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def sum_up_time(state: RunState, now: float | None = None) -> TimeSpent | None:
    """None before the first segment has ended. Of segments of an impossible length nothing is counted.

    `now`, a Unix time, shows dates that are yet to come.
    """
    if not (segments := with_possible_length(state, now)):
        return None
    recorded = [segment for segment in segments if segment.phases.get("train") and _steps(segment)]
    per_step = sum(s.phases["train"] for s in recorded) / sum(map(_steps, recorded)) if recorded else 0.0
    trained = sum(_training_seconds(segment, per_step) for segment in segments)
    share = waiting_share(segments)
    waited = sum(_waiting_seconds(segment, share) for segment in segments)
    stood_still = min(sum(view.seconds for segment in segments for view in segment.views), trained - waited)
    steps_made = sum(map(_steps, state.segments))
    kept = min(1.0, resume_step(state) / steps_made) if steps_made else 0.0
    phases = {name: sum(segment.phases.get(name, 0.0) for segment in segments) for name in _OVERHEADS}
    in_segments = sum(segment.seconds for segment in segments)
    # From when its lease was taken a segment may have waited in a queue before its seconds began.
    ends = [segment.started_at + segment.seconds for segment in segments]
    if state.lease is None and state.promoted is not None:
        ends.append(state.promoted.promoted_at)
    spent = TimeSpent(
        useful=(trained - waited - stood_still) * kept,
        again=(trained - waited - stood_still) * (1 - kept),
        input_wait=waited,
        without_rank=stood_still,
        **phases,
        unknown=max(0.0, in_segments - trained - sum(phases.values())),
        between=0.0 if describe_clock(state, now) else max(0.0, max(ends) - state.created_at - in_segments),
    )
    return spent if spent.total else None


def describe_clock(state: RunState, now: float | None = None) -> str | None:
    """What shows that a machine's clock was wrong, and what follows; None where all dates and lengths can be right.

    The time between segments is known by dates alone, so then none is counted: one wrong date would outweigh it all.
    `now` is the Unix time by the clock of who looks; without it no date is too late, and no length too great.
    """
    follows = "The time between segments is therefore not known and not counted. Set the clocks of the machines."
    if (dates := _describe_dates(state, now)) is not None:
        return f"A machine's clock was wrong: {dates}. {follows}"
    possible = {segment.fence for segment in with_possible_length(state, now)}
    for segment in state.segments:
        if segment.fence not in possible:
            return (
                f"A machine's clock was wrong: by it segment {segment.fence} took {duration(segment.seconds)}, and the "
                f"run is not that old. Its time is therefore not known and not counted. {follows}"
            )
    return None


def with_possible_length(state: RunState, now: float | None = None) -> list[SegmentRecord]:
    """The segments that can have taken as long as is recorded: no less than nothing, and, by `now`, no longer than the
    run is old by the oldest of its dates that can be right.
    """
    if now is None:
        return [segment for segment in state.segments if segment.seconds >= 0]
    oldest = min((date for _, date in _dates(state) if EARLIEST <= date <= now + CLOCK_SECONDS), default=EARLIEST)
    longest = now - oldest + CLOCK_SECONDS
    return [segment for segment in state.segments if 0 <= segment.seconds <= longest]


def _describe_dates(state: RunState, now: float | None) -> str | None:
    """What was on which impossible date, by the clock of a machine."""
    dates = _dates(state)
    for what, date in dates:
        if date < EARLIEST:
            return f"by it {what} on {moment(date)}"
        if now is not None and date > now + CLOCK_SECONDS:
            return f"by it {what} on {moment(date)}, but by the clock of this machine it is {moment(now)}"
    for (before, earlier), (what, later) in pairwise(dates):
        if later < earlier - CLOCK_SECONDS:
            return f"by it {what} on {moment(later)}, but {before} on {moment(earlier)}, and that was before"
    return None


def _dates(state: RunState) -> list[tuple[str, float]]:
    """What the machines' clocks dated, in the order in which it happened."""
    dates = [("the run began", state.created_at)]
    dates += [(f"segment {segment.fence} began", segment.started_at) for segment in state.segments]
    if state.lease is not None and state.lease.work == "train":
        dates.append((f"segment {state.lease.fence} began", state.lease.taken_at))
    return dates


def resume_step(state: RunState) -> int:
    """Where the ended segments led to: what one that runs has added is not counted, as its time is not."""
    if state.lease is not None:
        return state.lease.first_step
    return state.promoted.step if state.promoted else 0


def _steps(segment: SegmentRecord) -> int:
    return segment.last_step - segment.first_step


def _training_seconds(segment: SegmentRecord, per_step: float) -> float:
    return segment.phases.get("train", min(segment.seconds, _steps(segment) * per_step))


def _waiting_seconds(segment: SegmentRecord, share_of_others: float) -> float:
    share = segment.throughput.input_wait_fraction if segment.throughput else share_of_others
    return segment.phases.get("train", 0.0) * share


def waiting_share(segments: Sequence[SegmentRecord]) -> float:
    """The part that waiting for samples had of the time that those trained which recorded it; 0 if none did."""
    recorded = [segment for segment in segments if segment.throughput]
    trained = sum(segment.phases.get("train", 0.0) for segment in recorded)
    return sum(_waiting_seconds(segment, 0.0) for segment in recorded) / trained if trained else 0.0
