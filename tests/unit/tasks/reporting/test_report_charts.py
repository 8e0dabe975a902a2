"""The pictures of a report: nothing vanishes in them, however much there is to draw."""

import numpy as np
import pytest

from tasks.reporting.charts import MAX_BARS, draw_confusion, phase_bars
from tasks.reporting.curves import MAX_LANES, draw_training, place_labels, smooth
from tasks.reporting.timeline import thin
from tests.helpers.finished_runs import (
    evaluation_of,
    history_of,
    segments_of,
)
from tests.helpers.pictures import svg_text


def test_labels_of_one_lane_never_overlap_and_are_all_there_or_none() -> None:
    few = segments_of([("preempted", "SIGTERM", step, 0) for step in (100, 110, 120, 900, 1000)])
    labels = place_labels(few, 1000)
    assert [label.step for label in labels] == [100, 110, 120, 900, 1000]
    assert [label.lane for label in labels[:3]] == [0, 1, 2] and labels[-1].leftwards
    many = segments_of([("preempted", "SIGTERM", step, 0) for step in range(10, 1000, 10)])
    assert place_labels(many, 1000) == []
    assert max(label.lane for label in labels) < MAX_LANES


def test_hundreds_of_segments_are_counted_in_the_legend_and_grouped_into_bars() -> None:
    segments = segments_of([("lost" if step % 3 else "preempted", "", 50 * step, 4) for step in range(1, 122)])
    bars = phase_bars(segments)
    assert len(bars) <= MAX_BARS and bars[0].name == "2-37" and bars[-1].name == str(segments[-1].fence)
    assert sum(bar.seconds for bar in bars) == pytest.approx(sum(segment.seconds for segment in segments))
    chart = draw_training(history_of(6050, 100), segments)
    assert chart is not None
    assert "lost (81)" in svg_text(chart.svg) and "and 109 more" in chart.alt


def test_the_time_of_a_lost_segment_does_not_vanish() -> None:
    segments = segments_of([("lost", "", 100, 10)])
    assert phase_bars(segments)[0].phases == {"not recorded": pytest.approx(segments[0].seconds)}


def test_a_hundred_thousand_points_make_a_small_picture_that_keeps_its_spikes() -> None:
    history = history_of(100_000, every_steps=1)
    chart = draw_training(history, [])
    assert chart is not None and len(chart.svg) < 400_000
    steps, values = np.arange(100_000.0), np.zeros(100_000)
    values[54_321], values[777] = 9.0, -3.0
    thin_steps, thin_values = thin(steps, values)
    assert len(thin_steps) <= 1600 and list(thin_steps) == sorted(thin_steps)
    assert thin_values[list(thin_steps).index(54_321.0)] == 9.0 and thin_values.min() == -3.0


def test_points_that_are_no_numbers_are_left_out() -> None:
    chart = draw_training({"loss": [[10, 1.5, 1e-3], [20, float("nan"), 1e-3], [30, None, 1e-3], [40, 1.0, 1e-3]]}, [])
    assert chart is not None and "up to step 40: from 1.500 to 1.000" in chart.alt
    assert draw_training({"loss": [[10, float("inf"), 1e-3]]}, []) is None


def test_smoothing_keeps_the_ends_and_a_level_curve() -> None:
    assert smooth(np.full(500, 0.7)) == pytest.approx(np.full(500, 0.7))
    curve = np.linspace(3, 1, 400)
    assert smooth(curve) == pytest.approx(curve)
    assert smooth(np.array([2.0])) == pytest.approx([2.0])


@pytest.mark.parametrize("num_classes", [2, 40])
def test_the_confusion_matrix_shows_counts_at_every_size(num_classes: int) -> None:
    names = [f"class {index}" for index in range(num_classes)]
    evaluation = evaluation_of(names, "multiclass", 1)
    chart = draw_confusion(evaluation)
    assert chart is not None
    text = svg_text(chart.svg)
    assert all(str(evaluation["confusion"][index][index]) in text for index in range(num_classes))
    assert f"{num_classes} classes" in chart.alt


def test_a_class_without_samples_does_not_divide_by_zero() -> None:
    chart = draw_confusion({"classes": ["a", "b"], "confusion": [[0, 0], [3, 4]]})
    assert chart is not None and "4\n57.1 %" in svg_text(chart.svg).replace(" | ", "\n")
