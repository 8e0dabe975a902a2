"""What a run has to tell a tracker, in four chapters: promotions, a rollback, and the way to its end.

Invariant: pure; each chapter is all that is wanted at its time, whatever was told before.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from storage.runs.run_state import RollbackRecord, RunState
from tasks.tracking.marks import Marks
from tasks.tracking.points import Point, Snapshot
from tasks.tracking.sending import Wanted
from tests.helpers.finished_runs import state_of
from tests.helpers.rollbacks import rollback_to

KEYS = ("loss", "validation/auc")
# The values of a run before it went back to step 20, and after.
FIRST, SECOND = 1.0, 2.0
RESUME_STEP = 20


def points_up_to(last: int, value: float = FIRST, resume_step: int = 0) -> list[Point]:
    """A point every five steps; from after `resume_step` on with `value`, before with the first one."""
    return [
        Point(key, step, (FIRST if step <= resume_step else value) / step, 1000 * step)
        for step in range(5, last + 1, 5)
        for key in KEYS
    ]


def wanted(points: Sequence[Point], rollbacks: Sequence[RollbackRecord] = (), **changes: Any) -> Wanted:
    """With these points, and what else is changed."""
    state: RunState = state_of("run", 100, []).model_copy(update={"rollbacks": list(rollbacks)})
    plain = Wanted(
        identity="1" * 32,
        name="run",
        snapshot=Snapshot(state, Marks()),
        points_after=lambda after: [point for point in points if point.step > after],
        parameters={"train.steps": "100", "train.seed": "0"},
        tags={"holdfast.run": "store/runs/run"},
        status="RUNNING",
    )
    return replace(plain, **changes)


ROLLED_BACK = [rollback_to(RESUME_STEP)]
# How a run gets on: promotions up to step 30, back to step 20, and on to step 40 with other samples.
STORY = (
    wanted(points_up_to(10)),
    wanted(points_up_to(30)),
    wanted(points_up_to(RESUME_STEP), ROLLED_BACK),
    wanted(points_up_to(40, SECOND, RESUME_STEP), ROLLED_BACK, status="FINISHED", files={"model.json": b"{}"}),
)
