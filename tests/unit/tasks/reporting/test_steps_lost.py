"""Steps lost are "at least" so many where nobody lived to say how many were made, and so many where a rank said it."""

from typing import Any

import pytest

from storage.runs.run_records import Record
from storage.runs.run_state import RollbackRecord, SegmentRecord
from tasks.prefect_bridge.segment_end import describe_segment_end
from tasks.reporting.run_page import run_verdict
from tasks.reporting.run_summary import summarise
from tasks.reporting.tables import segments_table
from tests.helpers.finished_runs import segments_of, state_of
from tests.unit.tasks.reporting.test_summary import CONFIG

OF_RANKS: dict[str, Any] = {"phases": {"start": 1.0, "train": 9.0}}


def ended(outcome: str, last_step: int = 440, lost: int = 40, **changes: Any) -> SegmentRecord:
    (segment,) = segments_of([(outcome, "a cause", last_step, lost)])
    return segment.model_copy(update=changes)


@pytest.mark.parametrize(
    ("segment", "is_least"),
    [
        (ended("lost"), True),
        (ended("lost", **OF_RANKS), True),  # as far as they had reported
        (ended("lost", last_step=1000), False),  # there is no step after the last one
        (ended("failed", **OF_RANKS), False),
        (ended("failed", phases={}), True),  # ranks that hung
        (ended("failed", lost=0, phases={}, is_final=True), False),  # none began
        (ended("preempted", **OF_RANKS), False),
        (ended("completed", last_step=900, lost=0, patience=3), False),
    ],
)
def test_only_what_a_rank_did_not_say_itself_is_at_least(segment: SegmentRecord, is_least: bool) -> None:
    assert segment.steps_lost_is_least == is_least
    state = state_of("run", 1000, [segment])
    assert state.steps_lost_is_least == is_least
    prefix = "at least " if is_least else ""
    count = f"{segment.steps_lost:,}"
    assert f"| segments | 1, {prefix}{count} steps lost |" in summarise(state, CONFIG, "report")
    (row,) = segments_table([segment]).rows
    assert f"{prefix}{count}" in [cell.text for cell in row]
    if segment.steps_lost and segment.outcome != "completed":
        assert f", {prefix}{count} steps lost." in describe_segment_end(segment)
        assert f"So far 1 interruption cost {prefix}{count} steps of work." in run_verdict(state).remarks


def test_what_a_person_rolled_back_after_a_kill_is_counted_whole() -> None:
    """How far the segment came has no part in it: the steps after the rollback are left out, not lost."""
    segment = ended("lost")
    back = RollbackRecord(
        fence=segment.fence, diverged_step=440, resume_step=400, first_position=0, end_position=1,
        learning_rate_factor=1.0, cause="", rolled_back_at=0.0, asked_by="me",
    )  # fmt: skip
    state = state_of("run", 1000, [segment], rollbacks=[back])
    assert (state.steps_lost, state.steps_lost_is_least) == (0, False)


def test_no_record_keeps_it_so_that_manifests_are_as_before() -> None:
    assert issubclass(SegmentRecord, Record) and "steps_lost_is_least" not in ended("lost").model_dump()
