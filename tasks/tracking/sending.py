"""What is sent to a tracker, in which order, and what follows when something else is there already.

Invariant: the tracker has one live run for a run of ours, and in it each step once, with the value that the run's own
checkpoints have; a process that is killed at any moment leaves what the next one corrects. Points are sent in the order
of their steps, so the last step that the tracker has of each metric is where to go on. What two processes send, or one
that never heard of an answer, the tracker keeps once: the same in metric, step, value and time. A run that went back
behind steps that were sent is replaced: a new one is filled, then the old one is marked and deleted.
"""

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
    """The one run; others of the same identity are to be put out of sight."""

    run: TrackedRun
    others: list[TrackedRun]

    @property
    def version(self) -> int:
        return _number_in(self.run, VERSION_TAG)


class Sender:
    """Brings a tracker to what is wanted, again and again. For one thread; `abandon` may be called by another."""

    def __init__(self, tracker: Tracker) -> None:
        self.num_calls = 0  # goes up as long as it gets on
        self._tracker = tracker
        self._live: _Live | None = None
        self._is_abandoned = threading.Event()

    def abandon(self) -> None:
        """Ask for nothing any more: `send` ends with `TrackerError` after the call that is under way."""
        self._is_abandoned.set()

    def send(self, wanted: Wanted) -> None:
        """Raises `TrackerError`, and what reading the points raises; the next call makes up for all that is missing."""
        try:
            self._send(wanted)
        except BaseException:
            self._live = None  # what has arrived is asked again
            raise

    def _send(self, wanted: Wanted) -> None:
        live = self._live or self._look_up(wanted)
        if _is_behind(live.run, wanted):
            live = _Live(self._create(wanted, live.version + 1), [*live.others, live.run])
        self._live = live
        # From the last step on: a part of its points may be missing, and a validation of it may have come since.
        self._add(live, wanted.points_after(live.run.last_step - 1))
        self._describe(live, wanted)
        while live.others:
            self._put_out_of_sight(live.others[-1], live.run)
            live.others.pop()
        for name, data in wanted.files.items():
            self._call(self._tracker.put_file, live.run, name, data)

    def _look_up(self, wanted: Wanted) -> _Live:
        """The newest version; of two that were made at once the same one for every reader."""
        found = self._call(self._tracker.find_runs, wanted.identity)
        if not found:
            return _Live(self._create(wanted, version=1), [])
        found = sorted(found, key=lambda run: (-_number_in(run, VERSION_TAG), run.started_at, run.run_id))
        live = _Live(found[0], found[1:])
        if _number_in(live.run, ROLLBACKS_TAG) > wanted.num_rollbacks:
            raise TrackerError("Another process went on with the run, after a rollback that this one knows nothing of.")
        return live

    def _create(self, wanted: Wanted, version: int) -> TrackedRun:
        tags = {ID_TAG: wanted.identity, VERSION_TAG: str(version), ROLLBACKS_TAG: str(wanted.num_rollbacks)}
        began = round(1000 * wanted.snapshot.state.created_at)
        return self._call(self._tracker.create_run, wanted.name, began, tags)

    def _add(self, live: _Live, points: Sequence[Point]) -> None:
        """In the order of steps, so that a curve that is cut off has no hole."""
        missing = [point for point in points if point.step > live.run.last_steps.get(point.key, -1)]
        for batch in _in_parts(missing, MOST_POINTS):
            self._call(self._tracker.log, live.run.run_id, batch, {}, {})
            sent = {point.key: point.step for point in batch}
            live.run = replace(live.run, last_steps={**live.run.last_steps, **sent})

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


def _is_behind(run: TrackedRun, wanted: Wanted) -> bool:
    """Whether the tracker has steps that a rollback left out since the run was last described."""
    known = _number_in(run, ROLLBACKS_TAG)
    return known < wanted.num_rollbacks and run.last_step > first_resume_step(wanted.snapshot.state, known)


def _number_in(run: TrackedRun, tag: str) -> int:
    text = run.tags.get(tag, "")
    return int(text) if text.isdecimal() else 0


def _in_parts(entries: Sequence[Entry], most: int) -> list[Sequence[Entry]]:
    return [entries[start : start + most] for start in range(0, len(entries), most)]
