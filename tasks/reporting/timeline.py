"""What several pictures draw along the steps of a run: its segments as a strip, its interruptions, points of a curve.

Invariant: what is drawn is what the records have. Thinning keeps every spike: the lowest and highest point of a bucket.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from storage.runs.metric_values import MetricValue
from storage.runs.run_state import SegmentRecord
from tasks.reporting.canvas import OUTCOME_COLOURS, PAPER, VERMILION
from tasks.text import interruptions_of

WIDTH_INCHES = 11.0
MAX_BUCKETS = 800
MAX_NUMBERED_SEGMENTS = 40
MAX_MARKERS = 60
DONE_AGAIN = "trained again"
_AGAIN_STYLE: dict[str, Any] = {"color": VERMILION, "alpha": 0.18, "linewidth": 0}

Array = np.ndarray[Any, np.dtype[np.float64]]


def draw_strip(axes: Axes, segments: Sequence[SegmentRecord], texts: Sequence[str]) -> None:
    """The segments as bars on two levels, so that steps done twice are seen twice; on each its text."""
    for index, (segment, text) in enumerate(zip(segments, texts, strict=True)):
        level, length = index % 2, segment.last_step - segment.first_step
        colour = OUTCOME_COLOURS[segment.outcome]
        axes.barh(level, length, left=segment.first_step, height=0.8, color=colour, alpha=0.9, linewidth=0)
        # Black on all colours but the two dark ones: every one of these pairs has a contrast above 4.5.
        ink, middle = PAPER if segment.outcome == "diverged" else "black", segment.first_step + length / 2
        axes.text(middle, level - 0.05, text, ha="center", va="center", size=7.5, color=ink, clip_on=True)
    axes.set_axis_off()


def mark_interruptions(axes: Axes, segments: Sequence[SegmentRecord]) -> None:
    """A line at each interruption, and a red ground under the steps that were trained again after it."""
    width, alpha = (1.2, 1.0) if len(segments) <= MAX_NUMBERED_SEGMENTS else (0.5, 0.45)
    for segment in interruptions_of(segments):
        if segment.steps_lost:
            first_lost = segment.last_step - segment.steps_lost
            axes.axvspan(first_lost, segment.last_step, zorder=0.5, **_AGAIN_STYLE)
        colour = OUTCOME_COLOURS[segment.outcome]
        axes.axvline(segment.last_step, color=colour, linewidth=width, alpha=alpha, zorder=1)


def add_step_legend(figure: Figure, entries: Mapping[str, Artist], segments: Sequence[SegmentRecord]) -> None:
    """The entries, and that of the steps that were trained again, if there are any: below the axes, over no curve."""
    shown = dict(entries)
    if any(segment.steps_lost for segment in segments):
        shown[DONE_AGAIN] = Patch(**_AGAIN_STYLE)
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=min(5, len(shown)), fontsize=9)


def name_steps(axes: Axes) -> None:
    """The axis that all curves share: whole steps, with commas."""
    axes.set_xlabel("step")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))


def thin(steps: Array, values: Array, num_buckets: int = MAX_BUCKETS) -> tuple[Array, Array]:
    """At most `2 * num_buckets` of the points: the lowest and the highest of each bucket, in their order."""
    if len(steps) <= 2 * num_buckets:
        return steps, values
    edges = np.linspace(0, len(steps), num_buckets + 1).astype(int)
    kept = {
        first + offset
        for first, last in pairwise(edges.tolist())
        for offset in (int(values[first:last].argmin()), int(values[first:last].argmax()))
    }
    indices = sorted(kept)
    return steps[indices], values[indices]


def finite_points(rows: Sequence[Sequence[MetricValue | None]], num_columns: int = 3) -> Array:
    """[N, columns]: step, loss, learning rate; without points that are NaN, infinite or empty."""
    points = np.array([[np.nan if value is None else float(value) for value in row] for row in rows], dtype=float)
    points = points.reshape(-1, num_columns)
    return np.asarray(points[np.isfinite(points).all(axis=1)])
