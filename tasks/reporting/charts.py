"""The report's other pictures: confusion matrix, ROC curve, time per phase, where all time went, class counts.

Invariant: each is readable at every size it can get: cells lose their numbers before those overlap, segments are
grouped before bars become hairlines, long names are cut.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from storage.runs.run_state import SegmentRecord
from tasks.reporting.canvas import (
    BLUE,
    GREEN,
    GREY,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    PURPLE,
    SKY,
    VERMILION,
    YELLOW,
    Chart,
    add_grid,
    draw_svg,
)
from tasks.reporting.confusion import Confusion, read_confusion
from tasks.reporting.goodput import PART_NAMES, TimeSpent
from tasks.reporting.tables import MAX_CLASSES_WITH_CELLS
from tasks.text import count_of, duration, metric_name, score, share, told_apart

MAX_BARS = 24
MAX_CLASSES_WITH_SHARES = 12
MAX_CLASSES_WITH_ALL_COUNTS = 26
MAX_NAMES_OF_MANY = 40
MAX_POINTS_A_SIDE = 1000
MAX_FREQUENT_CLASSES, MAX_RARE_CLASSES = 40, 10
PHASE_COLOURS = {"train": BLUE, "validate": SKY, "save": ORANGE, "restore": PURPLE, "start": GREY}
UNRECORDED = "not recorded"
PHASE_ORDER = ("start", "restore", "train", "validate", "save")
_SPARE_COLOURS = (YELLOW, VERMILION, INK)
_TIME_UNITS = ((2 * 86400, 86400, "days"), (2 * 3600, 3600, "hours"), (120, 60, "minutes"), (0, 1, "seconds"))
_HEAT = LinearSegmentedColormap.from_list("holdfast", ["#f4f8fb", "#a9d0e8", "#3d93c5", BLUE, "#003f66"])


@dataclass(frozen=True)
class Bar:
    """The time of one segment, or of several in a row."""

    name: str
    seconds: float
    phases: Mapping[str, float]


def draw_confusion(evaluation: Mapping[str, Any]) -> Chart | None:
    """Rows are the true classes, shaded by the share of the row; None without a matrix."""
    confusion = read_confusion(evaluation)
    if confusion is None:
        return None
    num_classes = confusion.num_classes
    words = (
        f"Confusion matrix of {num_classes:,} classes: {share(confusion.num_right / confusion.num_samples)} of "
        f"{confusion.num_samples:,} samples are on the diagonal."
    )
    names = told_apart(evaluation["classes"], 24)
    if num_classes > MAX_CLASSES_WITH_CELLS:
        shown = {index: names[index] for index in range(0, num_classes, math.ceil(num_classes / MAX_NAMES_OF_MANY))}
        svg = draw_svg(10.4, 10.4, lambda figure: _draw_shares(figure, confusion, shown))
        return Chart(svg, f"{words} Each point is the largest share among its classes. The worst pairs are in a table.")
    side = 3.4 if num_classes == 2 else min(9.6, max(4.4, 0.62 * num_classes))
    margin = 0.5 + 0.075 * max(len(name) for name in names)
    svg = draw_svg(side + margin, side + 0.75 * margin, lambda figure: _draw_cells(figure, confusion, names))
    return Chart(svg, f"{words} The scores per class are in a table below.")


def draw_roc(evaluation: Mapping[str, Any]) -> Chart | None:
    """The ROC curve of a binary classifier, or None where there is none."""
    roc = evaluation.get("roc")
    if not roc:
        return None
    auc = evaluation["metrics"].get("auc")
    label = "" if auc is None else f"{metric_name('auc')} {score(auc)}"

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=(0, (4, 4)))
        slant: dict[str, Any] = {"rotation": 45, "rotation_mode": "anchor", "ha": "center", "va": "top"}
        axes.text(0.5, 0.48, "guessing", color=MUTED, size=9, **slant)
        x, y = roc["false_positive_rate"], roc["true_positive_rate"]
        axes.fill_between(x, y, color=BLUE, alpha=0.1, linewidth=0, step="post")
        axes.plot(x, y, color=BLUE, linewidth=2.2, drawstyle="steps-post", clip_on=False)
        axes.text(0.97, 0.06, label, ha="right", size=16, weight="bold")
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        axes.set_xlabel("false positive rate")
        axes.set_ylabel("true positive rate")
        add_grid(axes, "both")

    return Chart(draw_svg(4.6, 4.6, draw), f"ROC curve. {label}".strip() + ".")


def draw_phases(segments: Sequence[SegmentRecord]) -> Chart | None:
    """Seconds per phase, one bar per segment or group of segments; None before the first segment ended."""
    bars = phase_bars(segments)
    totals = _sum_phases(bar.phases for bar in bars)
    whole = sum(totals.values())
    if not whole:
        return None
    names = sorted(totals, key=lambda name: PHASE_ORDER.index(name) if name in PHASE_ORDER else len(PHASE_ORDER))
    spare = [name for name in names if name not in PHASE_COLOURS and name != UNRECORDED]
    extra = {name: _SPARE_COLOURS[index % len(_SPARE_COLOURS)] for index, name in enumerate(spare)}
    colours = PHASE_COLOURS | extra | {UNRECORDED: "#d3d9e0"}
    svg = draw_svg(11, 1.2 + 0.27 * len(bars), lambda figure: _draw_bars(figure, bars, names, colours))
    parts = ", ".join(f"{name} {duration(totals[name])} ({share(totals[name] / whole)})" for name in names)
    return Chart(svg, f"Time per phase over {count_of(len(segments), 'segment')}: {parts}.")


def phase_bars(segments: Sequence[SegmentRecord]) -> list[Bar]:
    """One bar per segment, or per as many in a row as it takes to stay within `MAX_BARS`."""
    per_bar = max(1, math.ceil(len(segments) / MAX_BARS))
    bars = []
    for first in range(0, len(segments), per_bar):
        group = segments[first : first + per_bar]
        phases = _sum_phases(segment.phases for segment in group)
        seconds = sum(segment.seconds for segment in group)
        # What no phase accounts for (a lost segment wrote none) must not vanish from the picture.
        rest = seconds - sum(phases.values())
        if rest > 0.01 * seconds:
            phases[UNRECORDED] = rest
        fences = [str(segment.fence) for segment in group]  # the numbers by which `status` and `logs` call them
        name = fences[0] if len(group) == 1 else f"{fences[0]}-{fences[-1]}"
        bars.append(Bar(name, seconds, phases))
    return bars


def draw_time(time: TimeSpent) -> Chart:
    """What the time since the run began was spent on, the part that counts first."""
    parts = {PART_NAMES[name]: seconds for name, seconds in time.parts.items() if seconds >= 0.0005 * time.total}
    rows = [(seconds, name, f"{duration(seconds)}  ({share(seconds / time.total)})") for name, seconds in parts.items()]
    colours = [GREEN if name == PART_NAMES["useful"] else GREY for name in parts]
    svg = draw_svg(11, 0.3 + 0.27 * len(rows), partial(_draw_labelled_bars, rows=rows, colours=colours))
    return Chart(svg, "Where the time went: " + ", ".join(f"{name} {label}" for _, name, label in rows) + ".")


def draw_classes(classes: Sequence[str], counts: Sequence[int], num_rows: int) -> Chart | None:
    """Samples per class of the training split, which has `num_rows`, the most frequent first.

    Of many classes the most frequent and the rarest, and between them a line that counts the others.
    """
    if not any(counts):
        return None
    rows = sorted(zip(counts, told_apart(classes, 28), strict=True), key=lambda row: -row[0])
    labelled = [(count, name, f"{count:,}  ({share(count / num_rows)})") for count, name in rows]
    num_between = len(rows) - MAX_FREQUENT_CLASSES - MAX_RARE_CLASSES
    if num_between > 1:
        most, least = rows[MAX_FREQUENT_CLASSES][0], rows[-MAX_RARE_CLASSES - 1][0]
        between = (0, f"{num_between:,} more", f"between {most:,} and {least:,} each")
        labelled = [*labelled[:MAX_FREQUENT_CLASSES], between, *labelled[-MAX_RARE_CLASSES:]]
    draw = partial(_draw_labelled_bars, rows=labelled, colours=[BLUE] * len(labelled))
    names = ", ".join(f"{name} {label}" for _, name, label in labelled)
    return Chart(draw_svg(5.6, 0.3 + 0.27 * len(labelled), draw), f"Training samples per class: {names}.")


def _draw_labelled_bars(figure: Figure, rows: Sequence[tuple[float, str, str]], colours: Sequence[str]) -> None:
    """A bar for each value, with its name before it and its label behind it."""
    axes = figure.subplots()
    positions = range(len(rows))
    axes.barh(positions, [value for value, _, _ in rows], height=0.72, color=colours)
    axes.set_yticks(positions, [name for _, name, _ in rows], color=INK)
    for position, (value, _, label) in enumerate(rows):
        axes.annotate(label, (value, position), xytext=(5, 0), textcoords="offset points", va="center", size=9,
                      color=MUTED)  # fmt: skip
    axes.set_xlim(0, max(value for value, _, _ in rows) * 1.3)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xticks([])
    axes.spines[:].set_visible(False)


def _sum_phases(records: Iterable[Mapping[str, float]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for record in records:
        for name, seconds in record.items():
            totals[name] = totals.get(name, 0.0) + max(seconds, 0.0)
    return totals


def _draw_cells(figure: Figure, confusion: Confusion, names: Sequence[str]) -> None:
    axes = figure.subplots()
    num_classes = confusion.num_classes
    counts, shares = np.zeros((num_classes, num_classes), dtype=int), np.zeros((num_classes, num_classes))
    counts[confusion.true, confusion.predicted] = confusion.samples
    shares[confusion.true, confusion.predicted] = confusion.shares
    boxes = [Rectangle((column - 0.48, row - 0.48), 0.96, 0.96) for row, column in np.ndindex(counts.shape)]
    axes.add_collection(PatchCollection(boxes, facecolors=_HEAT(shares.ravel()), linewidths=0))
    for row, column in np.ndindex(counts.shape):
        fraction = float(shares[row, column])
        text = _cell_text(int(counts[row, column]), fraction, num_classes, on_diagonal=row == column)
        size = 12 if num_classes == 2 else max(6.0, min(9.0, 150 / num_classes))
        ink = PAPER if fraction > 0.5 else INK
        if text:
            axes.text(column, row, text, ha="center", va="center", size=size, color=ink)
    _name_classes(axes, num_classes, dict(enumerate(names)), max(7.5, min(10.0, 200 / num_classes)))


def _draw_shares(figure: Figure, confusion: Confusion, names: Mapping[int, str]) -> None:
    """An image: a rectangle for each cell would take minutes and gigabytes from 1,000 classes on."""
    axes = figure.subplots()
    num_classes = confusion.num_classes
    low, high = -0.5, num_classes - 0.5
    shares = confusion.largest_shares(min(num_classes, MAX_POINTS_A_SIDE))
    axes.imshow(shares, cmap=_HEAT, vmin=0, vmax=1, interpolation="nearest", extent=(low, high, high, low))
    _name_classes(axes, num_classes, names, 7.5)


def _name_classes(axes: Axes, num_classes: int, names: Mapping[int, str], size: float) -> None:
    """The axes of a confusion matrix, with the names of those classes that have room."""
    slant: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if num_classes > 2 else {}
    axes.set_xticks(list(names), list(names.values()), size=size, color=INK, **slant)
    axes.set_yticks(list(names), list(names.values()), size=size, color=INK)
    axes.set(xlim=(-0.5, num_classes - 0.5), ylim=(num_classes - 0.5, -0.5), aspect="equal")
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.spines[:].set_visible(False)


def _cell_text(count: int, fraction: float, num_classes: int, *, on_diagonal: bool) -> str:
    """Fewer words the more classes: count and share, then counts, then the counts that matter."""
    if not count and num_classes > 2:
        return ""
    number = f"{count:,}" if count < 10_000 or num_classes == 2 else f"{count / 1000:,.0f}k"
    if num_classes <= MAX_CLASSES_WITH_SHARES:
        return f"{number}\n{100 * fraction:.1f} %" if num_classes == 2 or fraction >= 0.005 else number
    if num_classes <= MAX_CLASSES_WITH_ALL_COUNTS or on_diagonal or fraction >= 0.02:
        return number
    return ""


def _draw_bars(figure: Figure, bars: Sequence[Bar], names: Sequence[str], colours: Mapping[str, str]) -> None:
    axes = figure.subplots()
    longest = max(max(bar.seconds, sum(bar.phases.values())) for bar in bars)
    unit_seconds, unit = next((length, name) for least, length, name in _TIME_UNITS if longest >= least)
    left = np.zeros(len(bars))
    for name in names:
        widths = np.array([bar.phases.get(name, 0.0) for bar in bars]) / unit_seconds
        axes.barh(range(len(bars)), widths, left=left, height=0.72, color=colours[name], label=name)
        left += widths
    for position, bar in enumerate(bars):
        axes.annotate(duration(bar.seconds), (left[position], position), xytext=(6, 0), textcoords="offset points",
                      va="center", size=9)  # fmt: skip
    axes.set_xlim(0, longest / unit_seconds * 1.1)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_yticks(range(len(bars)), [bar.name for bar in bars])
    axes.set_ylabel("segment" if "-" not in bars[0].name else "segments")
    axes.set_xlabel(unit)
    axes.xaxis.set_major_locator(MaxNLocator(8))
    add_grid(axes, "x")
    figure.legend(loc="outside upper left", ncols=len(names), fontsize=9.5, handlelength=1.1, handleheight=1.1)
