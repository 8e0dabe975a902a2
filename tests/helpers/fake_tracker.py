"""A tracker in memory, that can be cut off: its caller is killed, or never hears of an answer, at any of its calls.

Invariant: it refuses what MLflow refuses, a change of a parameter and a deleted run, and keeps what MLflow keeps: of
points that are the same in key, step, value and time only one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from tasks.tracking.description import ID_TAG, Status
from tasks.tracking.points import Point
from tasks.tracking.tracker import MOST_NAMES, MOST_POINTS, TrackedRun, TrackerError

Answer = TypeVar("Answer")
How = Literal["killed before", "killed after", "no answer before", "no answer after"]


class Killed(BaseException):
    """The process that asked is gone."""


@dataclass
class Kept:
    """One run."""

    run: TrackedRun
    points: list[Point] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    is_deleted: bool = False

    def curve(self, key: str) -> list[tuple[int, float]]:
        """Steps and values of a metric, in the order in which they came."""
        return [(point.step, point.value) for point in self.points if point.key == key]


class FakeTracker:
    """A `Tracker`. `cut_off` says what happens at its n-th call from then on, counted from 0."""

    address = "http://tracker"

    def __init__(self) -> None:
        self.kept: dict[str, Kept] = {}
        self.num_calls = 0
        self._cut: tuple[int, How] | None = None

    @property
    def live(self) -> list[Kept]:
        return [kept for kept in self.kept.values() if not kept.is_deleted]

    def cut_off(self, call: int, how: How) -> None:
        self._cut = (self.num_calls + call, how)

    def find_runs(self, identity: str) -> list[TrackedRun]:
        return self._answer(lambda: [self._shown(kept) for kept in self.live if kept.run.tags[ID_TAG] == identity])

    def create_run(self, name: str, started_at: int, tags: Mapping[str, str]) -> TrackedRun:
        def create() -> TrackedRun:
            run = TrackedRun(f"run-{len(self.kept)}", started_at, "RUNNING", dict(tags), {}, {}, "files")
            self.kept[run.run_id] = Kept(run)
            return run

        return self._answer(create)

    def log(self, run_id: str, points: Sequence[Point], parameters: Mapping[str, str], tags: Mapping[str, str]) -> None:
        assert len(points) <= MOST_POINTS and len(parameters) <= MOST_NAMES and len(tags) <= MOST_NAMES

        def log() -> None:
            kept = self._require_live(run_id)
            before = kept.run.parameters
            if any(before.get(name, value) != value for name, value in parameters.items()):
                raise TrackerError("a parameter cannot be changed")
            kept.points += [point for point in points if point not in kept.points]
            kept.run = replace(kept.run, parameters={**before, **parameters}, tags={**kept.run.tags, **tags})

        self._answer(log)

    def set_status(self, run_id: str, status: Status, ended_at: int | None) -> None:
        def set_it() -> None:
            kept = self._require_live(run_id)
            kept.run = replace(kept.run, status=status)

        self._answer(set_it)

    def put_file(self, run: TrackedRun, name: str, data: bytes) -> None:
        self._answer(lambda: self.kept[run.run_id].files.update({name: data}))

    def delete_run(self, run_id: str) -> None:
        def delete() -> None:
            self._require_live(run_id).is_deleted = True

        self._answer(delete)

    def _require_live(self, run_id: str) -> Kept:
        if self.kept[run_id].is_deleted:
            raise TrackerError("the run is deleted")
        return self.kept[run_id]

    def _shown(self, kept: Kept) -> TrackedRun:
        steps: dict[str, int] = {}
        for point in kept.points:
            steps[point.key] = max(point.step, steps.get(point.key, -1))
        return replace(kept.run, last_steps=steps)

    def _answer(self, work: Callable[[], Answer]) -> Answer:
        number, self.num_calls = self.num_calls, self.num_calls + 1
        how = self._cut[1] if self._cut is not None and self._cut[0] == number else ""
        if how.endswith("before"):
            raise Killed if how.startswith("killed") else TrackerError("no answer")
        answer = work()
        if how.endswith("after"):
            raise Killed if how.startswith("killed") else TrackerError("no answer")
        return answer
