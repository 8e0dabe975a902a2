"""When steps became durable, and what was measured meanwhile: one mark for each promotion that was noted.

A curve in a checkpoint has no times, and must have none: it is the same however often the run was interrupted. The
times that a tracker shows follow from these marks. Invariant: a mark is in the store before anything with its time is
sent anywhere, so a process that sends a step again, after a kill, gives it the same time to the millisecond.
"""

from bisect import bisect_left
from collections.abc import Mapping

from pydantic import Field, ValidationError

from storage.errors import ObjectMissingError
from storage.objects.addresses import RUNS_FOLDER
from storage.objects.digests import canonical_json
from storage.objects.store import Store
from storage.runs.run_records import Record
from storage.runs.run_state import RunState


class Mark(Record):
    """A resume point as it was noted."""

    step: int
    at: float = Field(description="Unix time of its promotion.")
    figures: dict[str, float] = Field({}, description="Measured since the mark before, by name.")


class Marks(Record):
    """Of one run, oldest first, steps ascending."""

    format: int = 1
    rollbacks: int = Field(0, description="How many of the run's rollbacks these marks know of.")
    marks: list[Mark] = Field([])

    @property
    def last_step(self) -> int:
        """The last step with a time; 0 if there is none."""
        return self.marks[-1].step if self.marks else 0

    def with_mark_of(self, state: RunState, figures: Mapping[str, float]) -> "Marks":
        """With the resume point of `state`, if it is a new one, and without what the run has gone back behind."""
        marks = self.marks
        if len(state.rollbacks) > self.rollbacks:
            stays = first_resume_step(state, self.rollbacks)
            marks = [mark for mark in marks if mark.step <= stays]
        point = state.promoted
        if point is not None and point.step > (marks[-1].step if marks else 0):
            at = max(point.promoted_at, marks[-1].at if marks else 0.0)
            marks = [*marks, Mark(step=point.step, at=at, figures=dict(figures))]
        return Marks(rollbacks=len(state.rollbacks), marks=marks)

    def milliseconds(self, state: RunState, step: int) -> int:
        """Unix time of a step up to `last_step`: in proportion, between the marks around it."""
        steps = [mark.step for mark in self.marks]
        index = bisect_left(steps, step)
        after = self.marks[index]
        before_step, before_at = (steps[index - 1], self.marks[index - 1].at) if index else (0, state.created_at)
        share = (step - before_step) / (after.step - before_step)
        return round(1000 * (before_at + share * max(0.0, after.at - before_at)))


def first_resume_step(state: RunState, known: int) -> int:
    """How far back the run has gone since the first `known` rollbacks. There is a later one."""
    return min(record.resume_step for record in state.rollbacks[known:])


def read_marks(store: Store, run: str) -> Marks:
    """What was noted; nothing if that is missing or cannot be read: then times are what they are from now on."""
    try:
        return Marks.model_validate_json(store.read(_key(run)))
    except (ObjectMissingError, ValidationError):
        return Marks()


def write_marks(store: Store, run: str, marks: Marks) -> None:
    """Put or replace them. Raises `StoreError`."""
    store.write(_key(run), canonical_json(marks.model_dump(mode="json")))


def _key(run: str) -> str:
    return f"{RUNS_FOLDER}/{run}/tracking.json"
