"""The advice's picture: overhead, and what a crash takes, over the interval.

Invariant: what is drawn are the figures of the table, with the intervals between its rows.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MultipleLocator, NullLocator

from tasks.advice.cadence import Forecast, forecast_cadence
from tasks.advice.cadence_words import brief, in_seconds, percent
from tasks.advice.measured import SHOWN_SECONDS, Advice
from tasks.reporting.canvas import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Chart,
    add_grid,
    draw_svg,
)
from tasks.reporting.timeline import WIDTH_INCHES

NUM_POINTS = 200
MAX_TICKS = 9
LOST_TICKS = (1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200)
MAX_LOST_TICKS = 6
PART_COLOURS = {"stall": ORANGE, "work done again": VERMILION, "restarts": PURPLE}
MARK_COLOURS = {"recommended": GREEN, "configured": INK}


def draw_advice(advice: Advice) -> Chart | None:
    """None where there is but one possible interval."""
    shown = [one.forecast.interval_seconds for one in advice.intervals]
    first, last = min(shown), max(shown)
    if last / first < 1.05:
        return None
    curve = [
        forecast_cadence(float(interval), advice.basis.costs, advice.basis.rates)
        for interval in np.geomspace(first, last, NUM_POINTS)
    ]

    def draw(figure: Figure) -> None:
        parts = figure.subplots(2, 1, sharex=True, height_ratios=[2.6, 2.0])
        _draw_overhead(parts[0], curve, advice)
        _draw_lost(parts[1], curve)
        for axes in parts:
            _mark(axes, advice)
        _name_intervals(parts[-1], first, last)

    return Chart(draw_svg(WIDTH_INCHES, 5.2, draw), _in_words(advice))


def _draw_overhead(axes: Axes, curve: Sequence[Forecast], advice: Advice) -> None:
    x = [forecast.interval_seconds for forecast in curve]
    parts = np.array([[f.restart_share, f.lost_share, f.stall_share] for f in curve]).T * 100
    colours = [PART_COLOURS[name] for name in ("restarts", "work done again", "stall")]
    axes.stackplot(x, parts, colors=colours, alpha=0.55, linewidth=0)
    axes.plot(x, parts.sum(axis=0), color=INK, linewidth=1.4)
    axes.axvspan(*advice.indifferent_range, color=GREEN, alpha=0.10, linewidth=0, zorder=0.4)
    axes.set_ylim(0, 100 * _highest_overhead(advice, float(parts.sum(axis=0).max()) / 100))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: percent(value / 100)))
    axes.set_ylabel("of all the time")
    add_grid(axes, "y")
    _add_overhead_legend(axes)


def _highest_overhead(advice: Advice, highest: float) -> float:
    """Where the scale ends: an overhead that rises steeply would flatten out its own minimum."""
    now, then = (advice.at(cadence).forecast.overhead for cadence in (advice.configured, advice.recommended))
    return min(1.1 * highest, max(3 * then, 1.3 * now))


def _add_overhead_legend(axes: Axes) -> None:
    entries: dict[str, Any] = {name: Patch(color=colour, alpha=0.55) for name, colour in PART_COLOURS.items()}
    entries["as good as the best"] = Patch(color=GREEN, alpha=0.15)
    _add_legend(axes, entries)


def _draw_lost(axes: Axes, curve: Sequence[Forecast]) -> None:
    x = [forecast.interval_seconds for forecast in curve]
    lines: dict[str, tuple[list[float], str, Any]] = {
        "never more": ([f.bound_lost_seconds for f in curve], SKY, ":"),
        "95 % of crashes": ([f.p95_lost_seconds for f in curve], BLUE, "--"),
        "on average": ([f.mean_lost_seconds for f in curve], BLUE, "-"),
    }
    for values, colour, style in lines.values():
        axes.plot(x, values, color=colour, linestyle=style, linewidth=1.6)
    axes.set_ylim(0, None)
    unit = next((u for u in LOST_TICKS if axes.get_ylim()[1] / u < MAX_LOST_TICKS), LOST_TICKS[-1])
    axes.yaxis.set_major_locator(MultipleLocator(unit))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: brief(value) if value else "0"))
    axes.set_ylabel("lost at a crash")
    add_grid(axes, "y")
    _add_legend(axes, {name: Line2D([], [], color=c, linestyle=s) for name, (_, c, s) in lines.items()})


def _mark(axes: Axes, advice: Advice) -> None:
    for name, cadence in (("configured", advice.configured), ("recommended", advice.recommended)):
        axes.axvline(cadence.interval_seconds, color=MARK_COLOURS[name], linewidth=1.4, zorder=1.5,
                     linestyle="-" if name == "recommended" else (0, (5, 3)))  # fmt: skip


def _name_intervals(axes: Axes, first: float, last: float) -> None:
    axes.set_xscale("log")
    axes.set_xlim(first, last)
    ticks = [float(s) for s in SHOWN_SECONDS if first <= s <= last][-MAX_TICKS:] or [first, last]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: in_seconds(value)))
    axes.set_xlabel("interval between two saves; full line: recommended, dashed: configured")


def _add_legend(axes: Axes, entries: dict[str, Any]) -> None:
    axes.legend(entries.values(), entries.keys(), loc="lower left", bbox_to_anchor=(-0.01, 0.98), ncols=len(entries),
                fontsize=9, labelcolor=MUTED)  # fmt: skip


def _in_words(advice: Advice) -> str:
    parts = [
        f"{brief(one.forecast.interval_seconds)}: {percent(one.forecast.overhead)}, "
        f"{brief(one.forecast.mean_lost_seconds)} lost at a crash"
        for one in advice.intervals
    ]
    return f"Overhead and training time that a crash costs on average, by interval. {'; '.join(parts)}."
