"""Whatever rollbacks there were, positions are taken once and in order, and just what is recorded is left out."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.runs.rollbacks.positions import (
    end_position,
    find_governing,
    first_position,
    learning_rate_factor,
    same_stride,
    skipped_ranges,
    standing,
)
from storage.runs.rollbacks.rolling_back import roll_back
from storage.runs.run_state import Divergence, RollbackRecord, RunState, SegmentRecord

BATCH_SIZE = 4
# Of each rollback: the step that diverged, counted from 1, and how many steps were gone back.
Rollbacks = list[tuple[int, int]]
ROLLBACKS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 70)), max_size=6)


def rolled_back(rollbacks: Rollbacks, factor: float = 0.5) -> list[RollbackRecord]:
    """The records that these rollbacks leave in the manifest, one after the other."""
    state = RunState(run="run", created_at=1.0, config={}, dataset_digest="d", dataset_sha256="s" * 64, steps_total=100)
    for fence, (diverged_step, num_steps) in enumerate(rollbacks, start=2):
        state = state.model_copy(update={"segments": [*state.segments, diverged(fence, diverged_step)]})
        state = roll_back(fence, num_steps, factor, BATCH_SIZE)(state, fence + 1)
    return state.rollbacks


def diverged(fence: int, step: int) -> SegmentRecord:
    return SegmentRecord(
        fence=fence, outcome="diverged", cause="why", first_step=0, last_step=step, world_size=1,
        planned_steps=1000, started_at=1.0,
        seconds=1.0, steps_lost=0, phases={}, divergence=Divergence(kind="loss", step=step),
    )  # fmt: skip


def taken(step: int, records: list[RollbackRecord]) -> range:
    first = first_position(step, BATCH_SIZE, records)
    return range(first, first + BATCH_SIZE)


@given(ROLLBACKS, st.integers(1, 130))
def test_what_steps_take_and_what_is_left_out_follow_each_other_without_gap_or_overlap(
    rollbacks: Rollbacks, num_steps: int
) -> None:
    records = rolled_back(rollbacks)
    used = [position for step in range(num_steps) for position in taken(step, records)]
    left_out = [position for first, end in skipped_ranges(0, num_steps, records) for position in range(first, end)]
    assert used == sorted(set(used))
    assert sorted(used + left_out) == list(range(end_position(num_steps, BATCH_SIZE, records)))


@given(ROLLBACKS.filter(bool))
def test_a_rollback_leaves_the_steps_before_it_alone_and_gives_those_after_it_nothing_that_was_seen(
    rollbacks: Rollbacks,
) -> None:
    before, after = rolled_back(rollbacks[:-1]), rolled_back(rollbacks)
    diverged_step, num_steps = rollbacks[-1]
    resume_step = max(0, diverged_step - num_steps)
    assert [taken(step, before) for step in range(resume_step)] == [taken(step, after) for step in range(resume_step)]
    seen = {position for step in range(diverged_step) for position in taken(step, before)}
    assert seen.isdisjoint(taken(resume_step, after))
    replaced = [record.end_position for record in standing(before) if record.resume_step >= resume_step]
    assert taken(resume_step, after).start == max([max(seen) + 1, *replaced])


@given(ROLLBACKS.filter(bool))
def test_what_a_rollback_left_out_is_taken_by_no_step_whatever_rollbacks_follow(rollbacks: Rollbacks) -> None:
    records = rolled_back(rollbacks)
    used = {position for step in range(200) for position in taken(step, records)}
    for record in records:
        assert used.isdisjoint(range(record.first_position, record.end_position))


@given(ROLLBACKS, st.integers(0, 80), st.integers(0, 80))
def test_step_ranges_of_one_stride_are_the_steps_and_have_no_gap_within(rollbacks: Rollbacks, a: int, b: int) -> None:
    records = rolled_back(rollbacks)
    steps = range(min(a, b), max(a, b))
    step_ranges = same_stride(steps, records)
    assert [step for step_range in step_ranges for step in step_range] == list(steps)
    for step_range in step_ranges:
        firsts = [first_position(step, BATCH_SIZE, records) for step in step_range]
        assert firsts == [firsts[0] + BATCH_SIZE * index for index in range(len(step_range))]


def test_without_rollbacks_a_step_takes_the_samples_from_step_times_batch_size_on() -> None:
    assert [first_position(step, 64, []) for step in (0, 1, 50)] == [0, 64, 3200]
    assert [end_position(count, 64, []) for count in (0, 1, 50)] == [0, 64, 3200]
    assert learning_rate_factor(7, []) == 1.0
    assert skipped_ranges(0, 100, []) == []


def test_a_rollback_says_in_numbers_what_is_left_out() -> None:
    (record,) = rolled_back([(12, 5)])
    assert (record.resume_step, record.first_position, record.end_position) == (7, 28, 48)
    assert [first_position(step, BATCH_SIZE, [record]) for step in (6, 7, 8)] == [24, 48, 52]
    # A checkpoint after 7 steps stands before the gap, whoever wrote it and when.
    assert [end_position(count, BATCH_SIZE, [record]) for count in (7, 8)] == [28, 52]


def test_a_later_rollback_to_an_earlier_step_replaces_those_behind_it_and_leaves_out_all_they_left_out() -> None:
    records = rolled_back([(12, 5), (30, 10), (22, 18)])
    assert [record.resume_step for record in records] == [7, 20, 4]
    assert standing(records) == [records[2]]
    # 22 steps by then: 28 positions, 20 left out at step 7, 52 more, 40 left out at step 20, and those of two steps.
    assert skipped_ranges(0, 50, records) == [(16, 28 + 20 + 52 + 40 + 8)]


def test_a_later_rollback_to_a_later_step_stands_beside_the_earlier_one() -> None:
    records = rolled_back([(12, 5), (30, 10)])
    assert standing(records) == records
    assert skipped_ranges(0, 50, records) == [(28, 48), (100, 140)]
    assert skipped_ranges(8, 50, records) == [(100, 140)]


def test_the_learning_rate_is_lowered_from_the_resume_step_on_and_again_by_each_rollback() -> None:
    records = rolled_back([(12, 5), (30, 10)])
    assert [learning_rate_factor(step, records) for step in (6, 7, 19, 20, 99)] == [1.0, 0.5, 0.5, 0.25, 0.25]
    again = rolled_back([(12, 5), (13, 8)])
    assert [learning_rate_factor(step, again) for step in (4, 5, 99)] == [1.0, 0.25, 0.25]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_going_back_further_than_the_run_is_old_goes_back_to_its_beginning(count: int) -> None:
    records = rolled_back([(5, 100)] * count)
    assert [record.end_position for record in records] == list(accumulate([20] * count))
    assert find_governing(0, records) == records[-1]
    assert [record.first_position for record in records] == [0] * count
