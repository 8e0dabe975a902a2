"""The drill's picture: both runs' losses on top of each other, with the interruptions and the ranks of each segment.

Invariant: what is drawn is what the records have. The lower part shows the difference itself, so that two curves that
look the same and are not can be distinguished from two that are.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from storage.runs.run_state import SegmentRecord
from tasks.reporting.canvas import BLUE, INK, ORANGE, PAPER, SKY, VERMILION, Chart, add_grid, draw_svg
from tasks.reporting.timeline import (
    MAX_MARKERS,
    WIDTH_INCHES,
    Array,
    add_step_legend,
    draw_strip,
    finite_points,
    mark_interruptions,
    name_steps,
    thin,
)
from tasks.text import count_of, interruptions_of, outcome_counts

HEIGHT_INCHES = 5.7
# Bars narrower than this share of the picture have no room for a number of ranks.
MIN_SHARE_LABELLED = 0.02


def draw_drill(
    straight: Mapping[str, Any], interrupted: Mapping[str, Any], segments: Sequence[SegmentRecord]
) -> Chart | None:
    """`segments` are those of the interrupted run. None before there is a point to draw."""
    curves = [finite_points(history["loss"]) for history in (straight, interrupted)]
    checks = [_validations(history) for history in (straight, interrupted)]
    if not all(len(curve) for curve in curves):
        return None
    last_step = max(segment.last_step for segment in segments)

    def draw(figure: Figure) -> None:
        strip, loss, apart = figure.subplots(3, 1, sharex=True, height_ratios=[0.5, 3.4, 1.0])
        _draw_ranks(strip, segments, last_step)
        _draw_losses(loss, curves, checks)
        _draw_differences(apart, _differences(*curves), _differences(*checks))
        for axes in (loss, apart):
            mark_interruptions(axes, segments)
        apart.set_xlim(0, last_step)
        _add_legend(figure, segments, validated=all(len(check) for check in checks))

    words = _in_words(_differences(*curves), _differences(*checks), segments)
    return Chart(draw_svg(WIDTH_INCHES, HEIGHT_INCHES, draw), words)


def _validations(history: Mapping[str, Any]) -> Array:
    return finite_points([(entry["step"], entry["metrics"]["loss"]) for entry in history["validation"]], num_columns=2)


def _differences(ours: Array, theirs: Array) -> Array:
    """[N, 2]: step and interrupted minus straight, at the steps that both have."""
    losses = dict(ours[:, :2].tolist())
    rows = [(step, loss - losses[step]) for step, loss in theirs[:, :2].tolist() if step in losses]
    return np.array(rows, dtype=float).reshape(-1, 2)


def _draw_ranks(axes: Axes, segments: Sequence[SegmentRecord], last_step: int) -> None:
    """The segments, with their number of ranks where there is room for it."""

    def text(segment: SegmentRecord) -> str:
        share = (segment.last_step - segment.first_step) / last_step
        if share < MIN_SHARE_LABELLED:
            return ""
        return str(segment.world_size) if share < 4 * MIN_SHARE_LABELLED else _ranks(segment)

    draw_strip(axes, segments, [text(segment) for segment in segments])
    axes.set_ylim(-0.6, 1.6)


def _ranks(segment: SegmentRecord) -> str:
    return count_of(segment.world_size, "rank")


def _draw_losses(axes: Axes, curves: Sequence[Array], checks: Sequence[Array]) -> None:
    """The straight run broad and light, the interrupted one thin and dark over it."""
    straight, interrupted = curves
    axes.plot(*thin(straight[:, 0], straight[:, 1]), color=SKY, linewidth=5, alpha=0.75)
    axes.plot(*thin(interrupted[:, 0], interrupted[:, 1]), color=INK, linewidth=1)
    for check, size, colour, alpha in zip(checks, (11, 5), (ORANGE, INK), (0.75, 1.0), strict=True):
        marker = "D" if len(check) <= MAX_MARKERS else ""
        line = "none" if marker else "-"
        style: dict[str, Any] = {"color": colour, "alpha": alpha, "markeredgecolor": PAPER, "linestyle": line}
        points = thin(check[:, 0], check[:, 1])
        axes.plot(*points, marker=marker, markersize=size, clip_on=False, zorder=3, **style)
    axes.set_ylabel("loss")
    add_grid(axes, "y")


def _draw_differences(axes: Axes, training: Array, validation: Array) -> None:
    everything = np.abs(np.concatenate([training[:, 1], validation[:, 1], [0.0]]))
    axes.plot(*thin(training[:, 0], training[:, 1]), color=BLUE, linewidth=1)
    axes.plot(validation[:, 0], validation[:, 1], "D", color=INK, markersize=5, markeredgecolor=PAPER, clip_on=False)
    largest = float(everything.max())
    axes.set_ylim(*(-1.3 * largest, 1.3 * largest) if largest else (-1, 1))
    ticks = [-largest, 0, largest] if largest else [0]
    axes.set_yticks(ticks, [f"{tick:.2g}" for tick in ticks])
    axes.set_ylabel("difference")
    name_steps(axes)
    add_grid(axes, "both")


def _add_legend(figure: Figure, segments: Sequence[SegmentRecord], *, validated: bool) -> None:
    entries: dict[str, Artist] = {
        "straight": Line2D([], [], color=SKY, linewidth=5, alpha=0.75),
        "interrupted": Line2D([], [], color=INK, linewidth=1),
    }
    if validated:
        style: dict[str, Any] = {"marker": "D", "linestyle": "", "markeredgecolor": PAPER}
        entries["validation, straight"] = Line2D([], [], color=ORANGE, alpha=0.75, markersize=10, **style)
        entries["validation, interrupted"] = Line2D([], [], color=INK, markersize=5, **style)
    interruptions = interruptions_of(segments)
    entries[outcome_counts(interruptions)] = Line2D([], [], color=VERMILION, linewidth=1.5)
    add_step_legend(figure, entries, segments)


def _in_words(training: Array, validation: Array, segments: Sequence[SegmentRecord]) -> str:
    text = f"Losses of both runs at {count_of(len(training), 'step')}: " + _apart(training)
    text += f" Validation losses at {count_of(len(validation), 'step')}: " + _apart(validation)
    ends = ", ".join(f"step {s.last_step:,} on {_ranks(s)}" for s in interruptions_of(segments)[:12])
    return f"{text} Interrupted at {ends}."


def _apart(differences: Array) -> str:
    largest = float(np.abs(differences[:, 1]).max()) if len(differences) else 0.0
    return f"at most {largest:.2g} apart." if largest else "the same."
