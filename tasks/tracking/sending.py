"""What is sent to a tracker, in which order, and what follows when something else is there already.

Invariant: the tracker has one live run for a run of ours, and in it each step once, with the value that the run's own
checkpoints have; whoever is killed at any moment leaves what the next one makes right. So nothing is remembered of what
was sent but what the tracker itself says, and a run whose points cannot be corrected is replaced: a new one is filled,
then the old one is marked and deleted.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

from tasks.tracking.description import ID_TAG, PREFIX, ROLLBACKS_TAG, VERSION_TAG, Status
from tasks.tracking.marks import first_resume_step
from tasks.tracking.points import Point, Snapshot
from tasks.tracking.tracker import MOST_NAMES, MOST_POINTS, TrackedRun, Tracker, TrackerError

Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")
Entry = TypeVar("Entry")

# A server that keeps values as doubles gives them back as they are; one that prints them in between, nearly.
SAME = 1e-9
LARGEST = 1e308  # what MLflow keeps in place of infinity is above that


@dataclass(frozen=True)
class Wanted:
    """What the tracker should have of a run as it stands. `points_after` gives the points of later steps."""

    identity: str
    name: str
    snapshot: Snapshot
    points_after: Callable[[int], Sequence[Point]]
    parameters: Mapping[str, str]
    tags: Mapping[str, str]
    status: Status
    ended_at: int | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def num_rollbacks(self) -> int:
        return len(self.snapshot.state.rollbacks)


@dataclass
class _Live:
    """The one run, with its points; others of the same identity are to be put out of sight."""

    run: TrackedRun
    others: list[TrackedRun]
    points: dict[tuple[str, int], float] = field(default_factory=dict)
    has_repeats: bool = False

    @property
    def version(self) -> int:
        return _number_in(self.run, VERSION_TAG)


class Sender:
    """Brings a tracker to what is wanted, again and again. For one thread; `abandon` may be called by another."""

    def __init__(self, tracker: Tracker) -> None:
        self.num_calls = 0  # goes up as long as it gets on
        self._tracker = tracker
        self._live: _Live | None = None
        self._done_step = -1  # steps up to here need not be looked at again
        self._is_abandoned = threading.Event()

    def abandon(self) -> None:
        """Ask for nothing any more: `send` ends with `TrackerError` after the call that is under way."""
        self._is_abandoned.set()

    def send(self, wanted: Wanted) -> None:
        """Raises `TrackerError`, and what reading the points raises; the next call makes up for all that is missing."""
        try:
            self._send(wanted)
        except BaseException:
            self._live, self._done_step = None, -1  # what has arrived is asked again
            raise

    def _send(self, wanted: Wanted) -> None:
        live = self._live or self._look_up(wanted)
        points = wanted.points_after(self._done_step)
        if live.has_repeats or _is_behind(live, wanted) or _contradicts(live, points):
            live, points = self._begin_anew(wanted, live), wanted.points_after(-1)
        self._live = live
        self._add(live, points)
        self._describe(live, wanted)
        while live.others:
            self._put_out_of_sight(live.others[-1], live.run)
            live.others.pop()
        # A validation of the last step may still come.
        self._done_step = max((point.step for point in points), default=self._done_step + 1) - 1
        for name, data in wanted.files.items():
            self._call(self._tracker.put_file, live.run, name, data)

    def _look_up(self, wanted: Wanted) -> _Live:
        """The newest version; of two that were made at once the same one for whoever looks."""
        found = self._call(self._tracker.find_runs, wanted.identity)
        if not found:
            return _Live(self._create(wanted, version=1), [])
        found = sorted(found, key=lambda run: (-_number_in(run, VERSION_TAG), run.started_at, run.run_id))
        live = _Live(found[0], found[1:])
        if _number_in(live.run, ROLLBACKS_TAG) > wanted.num_rollbacks:
            raise TrackerError("Another process went on with the run, after a rollback that this one knows nothing of.")
        for key in live.run.keys:
            for step, value in self._call(self._tracker.read_points, live.run.run_id, key):
                live.has_repeats |= (key, step) in live.points
                live.points[key, step] = value
        return live

    def _begin_anew(self, wanted: Wanted, live: _Live) -> _Live:
        self._done_step = -1
        return _Live(self._create(wanted, live.version + 1), [*live.others, live.run])

    def _create(self, wanted: Wanted, version: int) -> TrackedRun:
        tags = {ID_TAG: wanted.identity, VERSION_TAG: str(version), ROLLBACKS_TAG: str(wanted.num_rollbacks)}
        began = round(1000 * wanted.snapshot.state.created_at)
        return self._call(self._tracker.create_run, wanted.name, began, tags)

    def _add(self, live: _Live, points: Sequence[Point]) -> None:
        """In the order of steps, so that a curve that is cut off has no hole."""
        missing = [point for point in points if (point.key, point.step) not in live.points]
        for batch in _in_parts(missing, MOST_POINTS):
            self._call(self._tracker.log, live.run.run_id, batch, {}, {})
            live.points |= {(point.key, point.step): point.value for point in batch}

    def _describe(self, live: _Live, wanted: Wanted) -> None:
        """A parameter cannot be changed: what it became since then is a tag."""
        run = live.run
        parameters = {name: text for name, text in wanted.parameters.items() if name not in run.parameters}
        changed = {
            f"{PREFIX}now.{name}": text
            for name, text in wanted.parameters.items()
            if run.parameters.get(name, text) != text or f"{PREFIX}now.{name}" in run.tags
        }
        wanted_tags = {**wanted.tags, **changed, ROLLBACKS_TAG: str(wanted.num_rollbacks)}
        tags = {name: text for name, text in wanted_tags.items() if run.tags.get(name) != text}
        for names in _in_parts(list(parameters.items()), MOST_NAMES):
            self._call(self._tracker.log, run.run_id, [], dict(names), {})
        for names in _in_parts(list(tags.items()), MOST_NAMES):
            self._call(self._tracker.log, run.run_id, [], {}, dict(names))
        if run.status != wanted.status:
            self._call(self._tracker.set_status, run.run_id, wanted.status, wanted.ended_at)
        live.run = replace(
            run, status=wanted.status, tags={**run.tags, **tags}, parameters={**run.parameters, **parameters}
        )

    def _put_out_of_sight(self, run: TrackedRun, by: TrackedRun) -> None:
        tags = {f"{PREFIX}replaced_by": by.run_id}
        if _number_in(run, ROLLBACKS_TAG) < _number_in(by, ROLLBACKS_TAG):
            tags[f"{PREFIX}rolled_back"] = "This run has steps that were rolled back."
        self._call(self._tracker.log, run.run_id, [], {}, tags)
        self._call(self._tracker.delete_run, run.run_id)

    def _call(self, ask: Callable[Asked, Answer], *args: Asked.args, **kwargs: Asked.kwargs) -> Answer:
        if self._is_abandoned.is_set():
            raise TrackerError("Given up.")
        answer = ask(*args, **kwargs)
        self.num_calls += 1
        return answer


def _is_behind(live: _Live, wanted: Wanted) -> bool:
    """Whether the live run has steps that a rollback left out since it was last described."""
    known = _number_in(live.run, ROLLBACKS_TAG)
    if known >= wanted.num_rollbacks:
        return False
    stays = first_resume_step(wanted.snapshot.state, known)
    return any(step > stays for _, step in live.points)


def _contradicts(live: _Live, points: Sequence[Point]) -> bool:
    """Whether a step is there with another value than the run's checkpoints have."""
    there = ((live.points.get((point.key, point.step)), point.value) for point in points)
    return any(value is not None and not _is_same(value, wanted) for value, wanted in there)


def _is_same(left: float, right: float) -> bool:
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) and math.isnan(right)
    if abs(left) > LARGEST and abs(right) > LARGEST:
        return (left > 0) == (right > 0)
    return math.isclose(left, right, rel_tol=SAME, abs_tol=0.0)


def _number_in(run: TrackedRun, tag: str) -> int:
    text = run.tags.get(tag, "")
    return int(text) if text.isdecimal() else 0


def _in_parts(entries: Sequence[Entry], most: int) -> list[Sequence[Entry]]:
    return [entries[start : start + most] for start in range(0, len(entries), most)]
