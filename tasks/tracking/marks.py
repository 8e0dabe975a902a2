"""When steps became durable, and what was measured meanwhile: one mark for each promotion that was noted.

A curve in a checkpoint has no times, and must have none: it is the same however often the run was interrupted. The
times that a tracker shows follow from these marks. Invariant: a mark is in the store before anything with its time is
sent anywhere, so a process that sends a step again, after a kill, gives it the same time to the millisecond. What is
far back is in parts of the run's history, so that what a promotion writes does not grow with the run; in memory marks
are whole.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

from pydantic import Field, ValidationError

from storage.errors import CorruptObjectError, ObjectMissingError
from storage.objects.addresses import RUNS_FOLDER
from storage.objects.digests import canonical_json
from storage.objects.history import HistoryPart, seal_history, walk_history
from storage.objects.store import Store
from storage.runs.run_records import Record
from storage.runs.run_state import RunState

MARKS_IN_PART = 256
KIND = "marks"


class Mark(Record):
    """A resume point as it was noted."""

    step: int
    at: float = Field(description="Unix time of its promotion.")
    figures: dict[str, float] = Field({}, description="Measured since the mark before, by name.")


class Marks(Record):
    """Of one run, oldest first, steps ascending."""

    format: int = 1
    rollbacks: int = Field(0, description="How many of the run's rollbacks these marks know of.")
    earlier: HistoryPart | None = Field(
        None,
        description="Newest part of the history with the marks that the file leaves out.",
    )
    num_earlier: int = Field(0, exclude=True, description="How many marks are in parts; in memory alone.")
    marks: list[Mark] = Field([], description="In memory all, also those in parts.")

    @property
    def last_step(self) -> int:
        """The last step with a time; 0 if there is none."""
        return self.marks[-1].step if self.marks else 0

    def with_mark_of(self, state: RunState, figures: Mapping[str, float]) -> "Marks":
        """With the resume point of `state`, if it is a new one, and without what the run has gone back behind."""
        marks: list[Mark] = self.marks
        changed: dict[str, object] = {"rollbacks": len(state.rollbacks)}
        if len(state.rollbacks) > self.rollbacks:
            marks = marks[: bisect_right(marks, first_resume_step(state, self.rollbacks), key=_step_of)]
            if len(marks) < self.num_earlier:  # a part has marks that count no more
                changed |= {"earlier": None, "num_earlier": 0}
        point = state.promoted
        if point is not None and point.step > (marks[-1].step if marks else 0):
            at = max(point.promoted_at, marks[-1].at if marks else 0.0)
            marks = [*marks, Mark(step=point.step, at=at, figures=dict(figures))]
        return self.model_copy(update={**changed, "marks": marks})

    def after(self, step: int) -> Sequence[Mark]:
        """Those of later steps."""
        return self.marks[bisect_right(self.marks, step, key=_step_of) :]

    def milliseconds(self, state: RunState, step: int) -> int:
        """Unix time of a step up to `last_step`: in proportion, between the marks around it."""
        index = bisect_left(self.marks, step, key=_step_of)
        after = self.marks[index]
        before = self.marks[index - 1] if index else Mark(step=0, at=state.created_at)
        share = (step - before.step) / (after.step - before.step)
        return round(1000 * (before.at + share * max(0.0, after.at - before.at)))


def first_resume_step(state: RunState, known: int) -> int:
    """How far back the run has gone since the first `known` rollbacks. There is a later one."""
    return min(record.resume_step for record in state.rollbacks[known:])


def read_marks(store: Store, run: str) -> Marks:
    """What was noted; nothing if that is missing or damaged: then times are what they are from now on."""
    try:
        stated = Marks.model_validate_json(store.read(_key(run)))
        parts = [content.entries[KIND] for content in walk_history(store, stated.earlier)]
        earlier = [Mark.model_validate(entry) for part in reversed(parts) for entry in part]
    except (ObjectMissingError, CorruptObjectError, ValidationError):
        return Marks()
    return stated.model_copy(update={"num_earlier": len(earlier), "marks": [*earlier, *stated.marks]})


def write_marks(store: Store, run: str, marks: Marks) -> Marks:
    """Put or replace them; the same marks, which know what of them is in parts now. Raises `StoreError`."""
    part, num_earlier = marks.earlier, marks.num_earlier
    while len(marks.marks) - num_earlier >= 2 * MARKS_IN_PART:
        entries = marks.marks[num_earlier : num_earlier + MARKS_IN_PART]
        sealed = seal_history(run, KIND, {KIND: [mark.model_dump(mode="json") for mark in entries]}, part)
        sealed.write(store)
        part, num_earlier = sealed.part, num_earlier + MARKS_IN_PART
    whole = marks.model_copy(update={"earlier": part, "num_earlier": num_earlier})
    stated = whole.model_copy(update={"marks": marks.marks[num_earlier:]})
    store.write(_key(run), canonical_json(stated.model_dump(mode="json")))
    return whole


def _step_of(mark: Mark) -> int:
    return mark.step


def _key(run: str) -> str:
    return f"{RUNS_FOLDER}/{run}/tracking.json"
