"""When a run counts as trained: at its last step, or where it lost patience, until it is given more of it."""

from typing import Any

import pytest

from storage.runs.run_state import CheckpointRecord, RunState
from tasks.reporting.status import describe_state
from tasks.text import how_far, outcome_words
from tests.helpers.finished_runs import segments_of

STEPS, EARLY = 300, 200


def checkpoint(step: int) -> CheckpointRecord:
    return CheckpointRecord(
        step=step, path=f"runs/run/{step}", digest="d", weights_sha256="w", num_bytes=1, fence=2, promoted_at=1.0
    )


def run_that_ended(step: int, ended_by: int | None = None, has_now: int | None = None, **update: Any) -> RunState:
    """With a segment that completed at `step`, `ended_by` so much patience; the configuration has `has_now`."""
    (segment,) = segments_of([("completed", "", step, 0)])
    train: dict[str, object] = {"train": {"patience": has_now}}
    state = RunState(
        run="run", created_at=0, config=train, dataset_digest="d",
        dataset_sha256="s" * 64, steps_total=STEPS, promoted=checkpoint(step),
        segments=[segment.model_copy(update={"patience": ended_by})],
    )  # fmt: skip
    return state.model_copy(update=update)


@pytest.mark.parametrize(
    ("state", "is_trained"),
    [
        (run_that_ended(STEPS), True),
        (run_that_ended(STEPS, has_now=2), True),
        (run_that_ended(EARLY), False),  # more steps were asked for
        (run_that_ended(EARLY, 2, 2), True),
        (run_that_ended(EARLY, 2, 3), False),
        (run_that_ended(EARLY, 2, None), False),
        (run_that_ended(EARLY, 2, 2, promoted=checkpoint(EARLY - 10)), False),  # the last one was damaged
        (run_that_ended(EARLY, 2, 2, steps_total=STEPS + 100), True),  # more steps are not more patience
    ],
)
def test_a_run_is_trained_at_its_last_step_or_with_the_patience_by_which_it_ended(
    state: RunState, is_trained: bool
) -> None:
    assert state.is_trained == is_trained
    assert state.model_copy(update={"metrics": {}, "metrics_step": state.promoted.step}).is_complete == is_trained  # type: ignore[union-attr]
    assert describe_state(state) == ("trained" if is_trained else "stopped")


def test_an_early_end_is_told_as_one() -> None:
    early, last = run_that_ended(EARLY, 2, 2), run_that_ended(STEPS, has_now=2)
    assert how_far(EARLY, early) == "step 200 of 300, ended early"
    assert how_far(STEPS, last) == "step 300 of 300"
    told = [outcome_words(segment) for state in (early, last) for segment in state.segments]
    assert told[0].startswith("ended the run early") and told[1] == "reached the last step"
