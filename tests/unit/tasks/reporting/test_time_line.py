"""The time line: every second of every segment is on it, and what is between segments is not."""

from itertools import pairwise

import pytest

from storage.runs.run_state import Throughput
from tasks.reporting.goodput import sum_up_time, waiting_share
from tasks.reporting.time_line import MAX_STRIPS, count_kept, cut, draw_time_line
from tests.helpers.finished_runs import measured_run, segments_of


def test_a_segment_is_cut_without_a_gap_and_what_it_lost_comes_at_the_end_of_its_training() -> None:
    (segment,) = segments_of([("failed", "", 1000, 250)])
    waiting = Throughput(samples_per_second=1, tokens_per_second=1, input_wait_fraction=0.2)
    spans = cut(segment.model_copy(update={"throughput": waiting}), 750, 0.9)
    assert [span.kind for span in spans] == ["start", "useful", "input_wait", "again", "validate", "save"]
    assert sum(span.seconds for span in spans) == pytest.approx(segment.seconds)
    for earlier, later in pairwise(spans):
        assert later.began_at == pytest.approx(earlier.began_at + earlier.seconds)
    seconds = {span.kind: span.seconds for span in spans}
    train = segment.phases["train"]
    assert seconds["input_wait"] == pytest.approx(0.2 * train)
    assert seconds["again"] == pytest.approx(0.8 * train * 0.25)


def test_of_a_segment_that_was_lost_only_the_whole_is_known() -> None:
    (segment,) = segments_of([("lost", "", 1000, 250)])
    (span,) = cut(segment, 750, 0.0)
    assert (span.kind, span.seconds) == ("unknown", segment.seconds)


def test_training_is_what_the_goodput_on_the_same_page_says_also_of_steps_that_a_rollback_left_out() -> None:
    segments = segments_of([("preempted", "", 500, 0), ("failed", "", 600, 40)])
    as_long = segments[1].phases | {"train": segments[0].phases["train"] * 400 / 500}
    second = segments[1].model_copy(update={"first_step": 200, "throughput": None, "phases": as_long})
    state = measured_run()
    assert state.promoted is not None
    promoted = state.promoted.model_copy(update={"step": 560, "promoted_at": second.started_at + second.seconds})
    state = state.model_copy(update={"segments": [segments[0], second], "promoted": promoted, "lease": None})
    spent = sum_up_time(state)
    assert spent is not None
    found = dict.fromkeys(("useful", "again", "input_wait"), 0.0)
    for segment, kept in zip(state.segments, count_kept(state), strict=True):
        for span in cut(segment, kept, waiting_share(state.segments)):
            if span.kind in found:
                found[span.kind] += span.seconds
    assert count_kept(state) == [200, 360]
    assert found == pytest.approx({name: spent.parts[name] for name in found}, rel=1e-6)


def test_there_is_none_before_a_segment_has_ended() -> None:
    assert draw_time_line(measured_run().model_copy(update={"segments": []})) is None


def test_a_run_of_months_has_as_many_strips_as_can_be_read() -> None:
    segments = segments_of([("preempted", "", 1_000_000 * number, 0) for number in range(1, 101)])
    state = measured_run().model_copy(update={"segments": segments, "created_at": segments[0].started_at})
    chart = draw_time_line(state)
    assert chart is not None
    assert chart.alt.startswith("Time line of 100 segments in ")
    assert chart.svg.count("+ ") <= MAX_STRIPS
    assert len(chart.svg) < 400_000
