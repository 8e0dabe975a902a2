"""The pictures of a report: nothing vanishes in them, however much there is to draw."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tasks.reporting.charts import MAX_BARS, draw_classes, draw_confusion, phase_bars
from tasks.reporting.confusion import read_confusion
from tasks.reporting.curves import MAX_LANES, draw_training, place_labels, smooth
from tasks.reporting.tables import MAX_CLASSES, classes_table, confusions_table, describe_classes
from tasks.reporting.timeline import add_step_legend, mark_interruptions, thin
from tasks.text import told_apart
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


def test_of_many_classes_the_matrix_is_an_image_that_shows_a_single_cell_and_few_names() -> None:
    num_classes = 3000
    true = np.arange(num_classes)
    predicted = np.where(true == 2500, 7, true)
    cells = {"true": true.tolist(), "predicted": predicted.tolist(), "samples": [1] * num_classes}
    evaluation = {"classes": [f"class {index}" for index in true], "confusion": cells}
    confusion = read_confusion(evaluation)
    assert confusion is not None and (confusion.num_right, confusion.num_samples) == (2999, 3000)
    shares = confusion.largest_shares(1000)
    assert (
        shares[2500 // 3, 7 // 3] == 1 and shares.sum() == 1001
    )  # and its neighbours keep their square the diagonal's
    chart = draw_confusion(evaluation)
    assert chart is not None and len(chart.svg) < 1_000_000 and "<image" in chart.svg
    assert "class 0" in svg_text(chart.svg) and svg_text(chart.svg).count("class") <= 80
    assert [cell.text for cell in confusions_table(evaluation).rows[0]] == ["class 2500 → class 7", "1", "100.0 %"]


def test_a_matrix_and_the_same_as_cells_are_read_alike() -> None:
    matrix = [[5, 0, 2], [0, 0, 0], [1, 3, 4]]
    cells = {"true": [0, 0, 2, 2, 2], "predicted": [0, 2, 0, 1, 2], "samples": [5, 2, 1, 3, 4]}
    classes = ["a", "b", "c"]
    dense, sparse = ({"classes": classes, "confusion": one} for one in (matrix, cells))
    assert svg_of(dense) == svg_of(sparse) and confusions_table(dense) == confusions_table(sparse)
    assert [row[0].text for row in confusions_table(dense).rows] == ["c → b", "a → c", "c → a"]


def svg_of(evaluation: dict[str, Any]) -> str:
    chart = draw_confusion(evaluation)
    assert chart is not None
    return chart.svg


def test_of_many_classes_the_table_has_those_with_the_lowest_scores_and_says_so() -> None:
    classes = [f"class {index}" for index in range(MAX_CLASSES + 50)]
    entries = [
        {"class": name, "precision": 1.0, "recall": 1.0, "f1": None if index == 3 else 1 - index / 1000, "support": 1}
        for index, name in enumerate(classes)
    ]
    shown = classes_table({"per_class": entries}).rows
    assert len(shown) == MAX_CLASSES and shown[0][0].text == classes[-1]
    assert f"The {MAX_CLASSES} of {len(classes)} classes with the lowest F1" in describe_classes({"per_class": entries})
    few = entries[:5]
    assert [row[0].text for row in classes_table({"per_class": few}).rows] == classes[:5]
    assert "lowest" not in describe_classes({"per_class": few})


def test_of_many_classes_the_most_frequent_and_the_rarest_are_drawn_and_the_others_counted() -> None:
    chart = draw_classes([f"class {index}" for index in range(1000)], [2000 - index for index in range(1000)], 10**6)
    assert chart is not None
    text = svg_text(chart.svg)
    assert "class 39" in text and "class 40" not in text and "class 990" in text and "class 999" in text
    assert "950 more" in text and "between 1,960 and 1,011 each" in text


@pytest.mark.parametrize("num_classes", [pytest.param(1000, marks=pytest.mark.slow), 10_000])
def test_a_report_of_many_classes_takes_seconds_and_little_memory(num_classes: int) -> None:
    made = run_of([sys.executable, "-m", "tests.helpers.report_of_many_classes", str(num_classes)])
    assert made["cpu_seconds"] < 20 and made["most_bytes"] < 500e6
    assert made["page_bytes"] < 3e6 and made["artifact_bytes"] < 1e5 and made["stored_bytes"] < 5e6


def run_of(command: list[str]) -> dict[str, Any]:
    """The line of JSON that a program of the project prints."""
    root = Path(__file__).parents[4]
    done = subprocess.run(command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_names_that_are_cut_to_the_same_text_stay_apart() -> None:
    long = "complaint about a parcel that came late in "
    names = told_apart([f"{long}spring", f"{long}summer", "short"], 24)
    assert len(set(names)) == 3 and all(len(name) <= 24 for name in names)
    assert names[0].startswith("complaint") and names[0].endswith("spring") and names[2] == "short"
    alike = told_apart([f"{'a' * 30}{middle}{'b' * 30}" for middle in ("x", "y")], 24)
    assert alike[0].endswith(" #1") and alike[1].endswith(" #2") and all(len(name) <= 24 for name in alike)
    assert told_apart(["bell\x00", "bell\x01"], 24) == ["bell\ufffd #1", "bell\ufffd #2"]
    evaluation = {"classes": [f"{long}spring", f"{long}summer"], "confusion": [[3, 1], [2, 4]]}
    assert "spring" in svg_text(svg_of(evaluation)) and "summer" in svg_text(svg_of(evaluation))


def test_the_legend_of_the_losses_is_below_the_axes_and_one_ground_means_trained_again() -> None:
    segments = segments_of([("lost", "", 400, 50), ("preempted", "", 800, 100), ("completed", "", 1000, 0)])
    figure = Figure(figsize=(11, 6), layout="constrained")
    _strip, loss = figure.subplots(2, 1, sharex=True)
    mark_interruptions(loss, segments)
    add_step_legend(figure, {"training": Line2D([], [])}, segments)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert legend.get_window_extent().y1 <= loss.get_window_extent().y0
    grounds = {patch.get_facecolor() for patch in loss.patches}
    assert len(loss.patches) == 2 and grounds == {legend.get_patches()[0].get_facecolor()}
    chart = draw_training(history_of(1000), segments)
    assert chart is not None and "trained again" in svg_text(chart.svg)
