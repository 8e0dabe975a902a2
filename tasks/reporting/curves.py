"""The report's curves over the steps of a run: training loss with its segments and interruptions, and validation.

Invariant: what is drawn is what the records have. Where there is no room for all labels of interruptions there are
none, and the legend counts them.
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from storage.runs.run_state import SegmentRecord
from storage.target_kinds import telling_order
from tasks.reporting.canvas import (
    BLUE,
    GREEN,
    GRID,
    INK,
    MUTED,
    ORANGE,
    OUTCOME_COLOURS,
    PAPER,
    POINTS_PER_INCH,
    PURPLE,
    SKY,
    VERMILION,
    Chart,
    add_grid,
    draw_svg,
)
from tasks.reporting.timeline import (
    MAX_MARKERS,
    MAX_NUMBERED_SEGMENTS,
    WIDTH_INCHES,
    Array,
    add_step_legend,
    draw_strip,
    finite_points,
    mark_interruptions,
    name_steps,
    thin,
)
from tasks.text import count_of, interruptions_of, metric_name, outcome_noun, shortened

MAX_LANES = 3
_LABEL_POINTS = 9.0
_CHARACTER_POINTS = 4.6
_METRIC_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)


@dataclass(frozen=True)
class Label:
    """What is written over one interruption, and where: `lane` 0 is the lowest."""

    step: int
    text: str
    outcome: str
    lane: int
    leftwards: bool


def draw_training(history: Mapping[str, Any], segments: Sequence[SegmentRecord]) -> Chart | None:
    """Loss over steps, or None before there is a point to draw."""
    points = finite_points(history.get("loss", []))
    if not len(points):
        return None
    entries = history.get("validation", [])
    validation = [(entry["step"], float(entry["metrics"]["loss"])) for entry in entries if "loss" in entry["metrics"]]
    last_step = max([points[-1, 0], *(segment.last_step for segment in segments)])
    labels = place_labels(interruptions_of(segments), last_step)
    num_lanes = 1 + max((label.lane for label in labels), default=-1)

    def draw(figure: Figure) -> None:
        heights = [0.34 + 0.24 * num_lanes, 3.4, 0.75]
        strip, loss, rate = figure.subplots(3, 1, sharex=True, height_ratios=heights)
        _draw_labelled_strip(strip, segments, labels, num_lanes)
        _draw_loss(loss, points, validation)
        mark_interruptions(loss, segments)
        _draw_learning_rate(rate, points)
        loss.set_xlim(0, last_step)
        _add_legend(figure, segments, validated=bool(validation), counted=not labels)

    height = 5.4 + 0.24 * num_lanes
    return Chart(draw_svg(WIDTH_INCHES, height, draw), _training_in_words(points, validation, segments))


def draw_validation(history: Mapping[str, Any]) -> Chart | None:
    """The metrics of every validation but the loss, or None before the first finite value."""
    entries = [entry for entry in history.get("validation", []) if set(entry["metrics"]) - {"loss"}]
    if not entries:
        return None
    names = sorted(set(entries[-1]["metrics"]) - {"loss"}, key=telling_order)
    found = {name: [(e["step"], float(e["metrics"][name])) for e in entries if name in e["metrics"]] for name in names}
    finite = {name: [point for point in curve if math.isfinite(point[1])] for name, curve in found.items()}
    curves = {name: curve for name, curve in finite.items() if curve}
    if not curves:
        return None
    alt = f"{count_of(len(entries), 'validation')}. Last values: " + ", ".join(
        f"{metric_name(name)} {found[name][-1][1]:.4f}, best {max(value for _, value in curve):.4f}"
        for name, curve in curves.items()
    )
    return Chart(draw_svg(WIDTH_INCHES, 3.2, lambda figure: _draw_metrics(figure, curves)), alt + ".")


def place_labels(interruptions: Sequence[SegmentRecord], last_step: float) -> list[Label]:
    """A free position over the chart for the label of each interruption; none at all if there is not room for all."""
    lane_ends = [float("-inf")] * MAX_LANES
    labels = []
    for segment in sorted(interruptions, key=lambda segment: segment.last_step):
        text = _label_text(segment)
        width = last_step * (_num_columns(text) * _CHARACTER_POINTS + 16) / (WIDTH_INCHES * POINTS_PER_INCH * 0.93)
        leftwards = segment.last_step + width > last_step
        start = segment.last_step - width if leftwards else segment.last_step
        lane = next((index for index, end in enumerate(lane_ends) if end <= start), None)
        if lane is None:
            return []
        lane_ends[lane] = start + width
        labels.append(Label(segment.last_step, text, segment.outcome, lane, leftwards))
    return labels


def _label_text(segment: SegmentRecord) -> str:
    cause, noun = shortened(segment.cause, 28), outcome_noun(segment.outcome)
    if not cause or cause.startswith(segment.outcome):
        return cause or noun
    return f"{noun} · {cause}"


def _num_columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def smooth(values: Array) -> Array:
    """A centred mean over a fortieth of the curve; towards both ends the window shrinks and stays centred."""
    count = len(values)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(count)
    reach = np.minimum(max(1, count // 80), np.minimum(index, count - 1 - index))
    return np.asarray((sums[index + reach + 1] - sums[index - reach]) / (2 * reach + 1))


def _draw_labelled_strip(
    axes: Axes, segments: Sequence[SegmentRecord], labels: Sequence[Label], num_lanes: int
) -> None:
    """The segments with their numbers, as `status` and `logs` call them; above them the labels."""
    is_numbered = len(segments) <= MAX_NUMBERED_SEGMENTS
    texts = [
        str(segment.fence) if is_numbered and segment.last_step > segment.first_step else "" for segment in segments
    ]
    draw_strip(axes, segments, texts)
    for label in labels:
        height = 2.4 + 1.7 * label.lane
        axes.vlines(label.step, -0.6, height, color=OUTCOME_COLOURS[label.outcome], linewidth=1.2)
        axes.plot(label.step, height, "o", color=OUTCOME_COLOURS[label.outcome], markersize=5, clip_on=False)
        offset, side = (-7, "right") if label.leftwards else (7, "left")
        axes.annotate(
            label.text,
            (label.step, height),
            xytext=(offset, 0),
            textcoords="offset points",
            ha=side,
            va="center",
            size=_LABEL_POINTS,
        )
    axes.set_ylim(-0.6, 1.8 + 1.7 * num_lanes)


def _draw_loss(axes: Axes, points: Array, validation: Sequence[tuple[int, float]]) -> None:
    steps, losses = points[:, 0], points[:, 1]
    smoothed = smooth(losses)
    axes.plot(*thin(steps, losses), color=BLUE, alpha=0.3, linewidth=0.8)
    axes.plot(*thin(steps, smoothed), color=BLUE, linewidth=2)
    checked = finite_points(validation, num_columns=2)
    if len(checked):
        style: dict[str, Any] = {
            "markersize": 5.5,
            "markeredgecolor": PAPER,
            "markeredgewidth": 0.8,
            "clip_on": False,
            "zorder": 3,
        }
        marker = "D" if len(checked) <= MAX_MARKERS else ""
        axes.plot(*thin(checked[:, 0], checked[:, 1]), marker=marker, color=INK, linewidth=0.9, **style)
    # A spike or two may leave the picture; the curve itself never does.
    shown = [np.quantile(losses, 0.002), np.quantile(losses, 0.998), *smoothed, *checked[:, 1]]
    margin = 0.05 * (max(shown) - min(shown)) or 0.1
    axes.set_ylim(min(shown) - margin, max(shown) + margin)
    axes.set_ylabel("loss")
    add_grid(axes, "y")


def _draw_learning_rate(axes: Axes, points: Array) -> None:
    axes.plot(*thin(points[:, 0], points[:, 2]), color=MUTED, linewidth=1.4)
    axes.fill_between(*thin(points[:, 0], points[:, 2]), color=GRID, linewidth=0)
    highest = points[:, 2].max()
    axes.set_yticks([0, highest], ["0", f"{highest:.2g}"])
    axes.set_ylim(0, highest * 1.15 or 1)
    axes.set_ylabel("learning\nrate")
    name_steps(axes)
    add_grid(axes, "x")


def _add_legend(figure: Figure, segments: Sequence[SegmentRecord], *, validated: bool, counted: bool) -> None:
    entries: dict[str, Artist] = {
        "training": Line2D([], [], color=BLUE, alpha=0.35, linewidth=1),
        "training, smoothed": Line2D([], [], color=BLUE, linewidth=2),
    }
    if validated:
        entries["validation"] = Line2D([], [], color=INK, marker="D", markersize=5, linewidth=0.8)
    if counted:
        for outcome, number in Counter(segment.outcome for segment in interruptions_of(segments)).items():
            line = Line2D([], [], color=OUTCOME_COLOURS[outcome], linewidth=2)
            entries[f"{outcome_noun(outcome)} ({number:,})"] = line
    add_step_legend(figure, entries, segments)


def _training_in_words(
    points: Array, validation: Sequence[tuple[int, float]], segments: Sequence[SegmentRecord]
) -> str:
    smoothed = smooth(points[:, 1])
    text = f"Training loss up to step {points[-1, 0]:,.0f}: from {smoothed[0]:.3f} to {smoothed[-1]:.3f}."
    if validation:
        text += f" Validation loss at step {validation[-1][0]:,}: {validation[-1][1]:.3f}."
    interruptions = interruptions_of(segments)
    if interruptions:
        named = ", ".join(f"{outcome_noun(s.outcome)} at step {s.last_step:,}" for s in interruptions[:12])
        more = f" and {len(interruptions) - 12:,} more" if len(interruptions) > 12 else ""
        text += f" {count_of(len(interruptions), 'interruption')}: {named}{more}."
    return text


def _draw_metrics(figure: Figure, curves: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    axes = figure.subplots()
    ends = spread([curve[-1][1] for curve in curves.values()], curves)
    for index, (name, curve) in enumerate(curves.items()):
        colour = _METRIC_COLOURS[index % len(_METRIC_COLOURS)]
        steps, values = zip(*curve, strict=True)
        marker = "os^vDP"[index % 6] if len(curve) <= MAX_MARKERS else ""
        axes.plot(
            *thin(np.array(steps), np.array(values)),
            marker=marker,
            color=colour,
            linewidth=1.8,
            markersize=5,
            clip_on=False,
        )
        axes.annotate(
            f"{metric_name(name)} {values[-1]:.3f}", (steps[-1], values[-1]), xytext=(1.012, ends[index]),
            textcoords=("axes fraction", "data"), va="center", annotation_clip=False,
        )  # fmt: skip
        axes.plot([1.0, 1.01], [values[-1], ends[index]], transform=axes.get_yaxis_transform(), color=colour,
                  linewidth=1, clip_on=False)  # fmt: skip
    axes.set_xlim(0, max(curve[-1][0] for curve in curves.values()))
    name_steps(axes)
    add_grid(axes, "y")


def spread(values: Sequence[float], curves: Mapping[str, Sequence[tuple[int, float]]]) -> list[float]:
    """`values` moved apart, so that labels at those heights do not touch; their order stays."""
    everything = [value for curve in curves.values() for _, value in curve]
    gap = (max(everything) - min(everything)) * 0.09 or 0.01
    heights = list(values)
    order = sorted(range(len(values)), key=lambda index: values[index])
    for lower, upper in pairwise(order):
        heights[upper] = max(heights[upper], heights[lower] + gap)
    return heights
