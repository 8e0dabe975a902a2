"""Where a run's time went: the arithmetic, by hand."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.runs.holders import this_process
from storage.runs.run_state import Lease, RunState, SegmentRecord, Throughput
from tasks.reporting.goodput import EARLIEST, PART_NAMES, describe_clock, sum_up_time
from tasks.reporting.run_page import run_verdict
from tasks.text import moment
from tests.helpers.finished_runs import BEGAN_AT, checkpoint_at, interrupted_run, state_of


def segment(first_step: int, last_step: int, at: float, seconds: float, **more: Any) -> SegmentRecord:
    known = {"fence": 2, "outcome": "preempted", "cause": "", "world_size": 1, "steps_lost": 0, "phases": {}}
    steps = {"first_step": first_step, "last_step": last_step, "planned_steps": 1000}
    times = {"started_at": BEGAN_AT + at, "seconds": seconds}
    return SegmentRecord.model_validate(known | steps | times | more)


def run_of(segments: list[SegmentRecord], step: int) -> RunState:
    promoted = checkpoint_at("run", step) if step else None
    return state_of("run", 1000, segments, created_at=BEGAN_AT, promoted=promoted)


def parts_of(state: RunState) -> Mapping[str, float]:
    """Those that are not nothing."""
    time = sum_up_time(state)
    assert time is not None
    return {name: seconds for name, seconds in asdict(time).items() if seconds}


def seconds_up_to(most: float) -> st.SearchStrategy[float]:
    return st.floats(0, most, allow_nan=False)


def test_before_a_segment_has_ended_nothing_is_said() -> None:
    assert sum_up_time(run_of([], 0)) is None


def test_phases_and_what_lies_between_segments_add_up_to_all_of_the_time() -> None:
    phases = {"start": 5.0, "restore": 2.0, "train": 80.0, "validate": 8.0, "save": 3.0}
    waited = Throughput(samples_per_second=1, tokens_per_second=1, input_wait_fraction=0.25)
    state = run_of([segment(0, 100, at=20, seconds=100, phases=phases, throughput=waited)], step=100)
    time = sum_up_time(state)
    assert time is not None and time.total == 120
    assert parts_of(state) == pytest.approx(
        {
            "useful": 60,
            "input_wait": 20,
            "start": 5,
            "restore": 2,
            "validate": 8,
            "save": 3,
            "unknown": 2,
            "between": 20,
        }
    )
    assert time.goodput == pytest.approx(0.5)


def test_what_ranks_stood_still_for_after_another_one_died_is_no_time_in_which_steps_were_made() -> None:
    views = [
        {"step": 20, "lost": [1], "causes": ["SIGKILL"], "num_ranks": 3, "seconds": 1.5},
        {"step": 30, "joined": [1], "num_ranks": 4, "seconds": 0.5},
    ]
    state = run_of([segment(0, 100, at=0, seconds=100, phases={"train": 100.0}, views=views)], step=100)
    assert parts_of(state) == pytest.approx({"useful": 98, "without_rank": 2})


def test_a_lost_segment_is_known_by_its_steps_and_those_that_no_checkpoint_has_do_not_count() -> None:
    lost = segment(0, 50, at=0, seconds=80, outcome="lost", steps_lost=20)
    second = segment(30, 80, at=80, seconds=50, phases={"train": 50.0})
    # 100 steps of a second each were made, of which 80 count; 30 s of the lost segment are not recorded.
    assert parts_of(run_of([lost, second], step=80)) == pytest.approx({"useful": 80, "again": 20, "unknown": 30})


def test_a_lost_segment_that_reported_is_accounted_for_and_waited_for_samples_as_the_others_did() -> None:
    waited = Throughput(samples_per_second=1, tokens_per_second=1, input_wait_fraction=0.25)
    phases = {"start": 4.0, "restore": 1.0, "train": 40.0, "save": 2.0}
    lost = segment(0, 40, at=3, seconds=50, outcome="lost", steps_lost=10, phases=phases)
    second = segment(30, 70, at=60, seconds=40, phases={"train": 40.0}, throughput=waited)
    # 80 steps of a second each were made, a quarter of it waiting; 70 of them count. 3 s of the first are not recorded.
    assert parts_of(run_of([lost, second], step=70)) == pytest.approx(
        {
            "useful": 52.5,
            "again": 7.5,
            "input_wait": 20,
            "start": 4,
            "restore": 1,
            "save": 2,
            "unknown": 3,
            "between": 10,
        }
    )


@given(st.data())
def test_the_parts_of_a_run_that_is_killed_again_and_again_add_up_to_all_the_time_since_it_began(
    data: st.DataObject,
) -> None:
    segments: list[SegmentRecord] = []
    step, at = 0, data.draw(seconds_up_to(60))
    for _ in range(data.draw(st.integers(1, 30))):
        lengths = st.fixed_dictionaries({name: seconds_up_to(4000) for name in ("start", "restore", "train", "save")})
        phases, made = data.draw(lengths), data.draw(st.integers(0, 500))
        lost = data.draw(st.integers(0, made))
        seconds = sum(phases.values()) + data.draw(seconds_up_to(5))
        known = phases if data.draw(st.booleans()) else {}
        segments.append(segment(step, step + made, at, seconds, outcome="lost", steps_lost=lost, phases=known))
        step, at = step + made - lost, at + seconds + data.draw(seconds_up_to(600))
    time = sum_up_time(run_of(segments, 0).model_copy(update={"promoted": None}))
    ended_at = segments[-1].started_at + segments[-1].seconds
    assert (time.total if time else 0.0) == pytest.approx(ended_at - BEGAN_AT, abs=0.001)


def test_a_lost_segment_alone_is_not_guessed_at() -> None:
    assert parts_of(run_of([segment(0, 50, at=0, seconds=80, outcome="lost")], step=0)) == {"unknown": 80}


def test_what_the_last_segment_waited_in_a_queue_lies_between_segments() -> None:
    waited = segment(0, 90, at=0, seconds=50, phases={"train": 50.0})
    state = run_of([waited], step=90)
    assert state.promoted is not None and state.promoted.promoted_at == BEGAN_AT + 90
    assert parts_of(state) == pytest.approx({"useful": 50, "between": 40})


def test_what_a_segment_under_way_has_promoted_does_not_count_before_its_time_does() -> None:
    ended = segment(0, 50, at=0, seconds=50, phases={"train": 50.0}, steps_lost=10)
    lease = Lease(
        fence=3, holder=this_process(), world_size=1, planned_steps=1000, first_step=40, taken_at=BEGAN_AT + 50
    )
    state = run_of([ended], step=70).model_copy(update={"lease": lease})
    assert parts_of(state) == pytest.approx({"useful": 40, "again": 10})


def test_a_clock_that_was_wrong_is_named_and_no_time_between_segments_follows_from_it() -> None:
    ends = [segment(0, 100, at=20, seconds=100), segment(100, 200, at=500, seconds=100, fence=5)]
    sound = run_of(ends, step=200)
    assert describe_clock(sound) is None and parts_of(sound)["between"] == 400
    never_set = sound.model_copy(update={"created_at": 12.0})
    told = describe_clock(never_set)
    assert told is not None and "by it the run began on 1970-01-01 00:00 UTC" in told and "Set the clocks" in told
    assert "between" not in parts_of(never_set)
    early = run_of([segment(0, 100, at=EARLIEST - BEGAN_AT - 1, seconds=100)], step=100)
    assert "segment 2 began on 2023-12-31 23:59 UTC" in str(describe_clock(early))
    backwards = run_of([ends[0], segment(100, 200, at=-600, seconds=100, fence=5)], step=200)
    assert "by it segment 5 began on" in str(describe_clock(backwards))
    a_little = run_of([ends[0], segment(100, 200, at=-30, seconds=100, fence=5)], step=200)
    assert describe_clock(a_little) is None
    assert describe_clock(backwards) in run_verdict(backwards).remarks


def test_a_date_that_is_yet_to_come_is_named_and_no_time_follows_from_it() -> None:
    ahead = run_of([segment(0, 100, at=20, seconds=100), segment(100, 200, at=1e8, seconds=100, fence=5)], step=200)
    now = BEGAN_AT + 1000
    assert describe_clock(ahead) is None  # without a clock to look at it may be so
    told = str(describe_clock(ahead, now))
    assert "by it segment 5 began on 2030-" in told and f"by the clock of this machine it is {moment(now)}" in told
    time = sum_up_time(ahead, now)
    assert time is not None and time.total == 200 and time.between == 0
    remarks = " ".join(run_verdict(ahead, None, now).remarks)
    assert told in remarks


def test_a_segment_that_is_longer_than_the_run_is_old_is_named_and_not_counted() -> None:
    phases = {"start": 20783 * 86400.0, "train": 80.0}
    absurd = segment(100, 200, at=200, seconds=sum(phases.values()), phases=phases, fence=5)
    before = segment(0, 100, at=20, seconds=100, phases={"train": 90.0})
    state, now = run_of([before, absurd], step=200), BEGAN_AT + 1000
    time = sum_up_time(state, now)
    assert time is not None and (time.total, time.useful, time.start) == (100, 90, 0)
    told = str(describe_clock(state, now))
    assert told.startswith("A machine's clock was wrong: by it segment 5 took 20783 d") and "Set the clocks" in told
    assert sum_up_time(run_of([absurd], step=200), now) is None
    # One that is as long as the run is old, and one that is shorter than nothing.
    whole = run_of([segment(0, 100, at=0, seconds=1000)], step=100)
    assert describe_clock(whole, now) is None
    backwards = run_of([segment(0, 100, at=20, seconds=-5)], step=100)
    assert "segment 2 took -5" in str(describe_clock(backwards)) and sum_up_time(backwards) is None


def test_every_part_has_a_name() -> None:
    time = sum_up_time(interrupted_run().state)
    assert time is not None and set(time.parts) == set(PART_NAMES)
