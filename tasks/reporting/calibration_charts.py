"""The pictures of a calibration: the reliability diagram, and for a binary target the scores over the threshold.

Invariant: what is drawn is in the record; a bin without samples and a precision without a positive leave no point.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tasks.reporting.canvas import BLUE, GREEN, GREY, INK, MUTED, ORANGE, Chart, add_grid, draw_svg
from tasks.text import score, shortened

SIDE_INCHES = 4.6
# Of the area of the largest bin's point; no point is smaller than can be seen.
LARGEST_POINT, SMALLEST_POINT = 190.0, 14.0
SCORES = (("precision", BLUE), ("recall", ORANGE), ("f1", GREEN))


def draw_reliability(calibration: Mapping[str, Any] | None) -> Chart | None:
    """What was claimed and what came true, before and after; None without a temperature."""
    if calibration is None or calibration["temperature"] is None:
        return None
    errors = calibration["calibration_error"]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=(0, (4, 4)))
        for when, colour, mark in (("before", GREY, "s"), ("after", BLUE, "o")):
            _draw_bins(axes, calibration["bins"][when], colour, mark, f"{when}: error {score(errors[when])}")
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        axes.set_xlabel(f"probability of {_what(calibration)}")
        axes.set_ylabel("share that came true")
        axes.legend(loc="upper left")
        add_grid(axes, "both")

    words = f"before {score(errors['before'])}, after {score(errors['after'])}"
    svg = draw_svg(SIDE_INCHES, SIDE_INCHES, draw)
    return Chart(svg, f"Reliability diagram on the test split. Expected calibration error: {words}.")


def draw_thresholds(calibration: Mapping[str, Any] | None) -> Chart | None:
    """Precision, recall and F1 over the threshold, with the best one; None unless the target is binary."""
    thresholds = calibration.get("thresholds") if calibration is not None else None
    if thresholds is None or "per_class" in thresholds:
        return None
    best = thresholds["best"]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for name, colour in SCORES:
            label = "F1" if name == "f1" else name
            found = [(one["threshold"], one[name]) for one in thresholds["listed"] if one[name] is not None]
            axes.plot(*zip(*found, strict=True), color=colour, linewidth=2, label=label)
        axes.axvline(best["threshold"], color=INK, linewidth=1, linestyle=(0, (4, 4)))
        axes.scatter([best["threshold"]], [best["f1"]], color=GREEN, s=36, zorder=3, clip_on=False)
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        axes.set_xlabel(f"threshold; best F1 at {best['threshold']:.3f}")
        axes.legend(loc="lower left")
        add_grid(axes, "both")

    words = f"F1 is highest at {best['threshold']:.3f}, with {score(best['f1'])}"
    svg = draw_svg(SIDE_INCHES, SIDE_INCHES, draw)
    return Chart(svg, f"Precision, recall and F1 over the threshold, on the validation split. {words}.")


def _draw_bins(axes: Axes, bins: Sequence[Mapping[str, Any]], colour: str, mark: str, label: str) -> None:
    most = max(one["num_samples"] for one in bins)
    x, y = [one["claimed"] for one in bins], [one["came_true"] for one in bins]
    sizes = [max(SMALLEST_POINT, LARGEST_POINT * one["num_samples"] / most) for one in bins]
    axes.plot(x, y, color=colour, linewidth=1.4, clip_on=False, marker=mark, markersize=4, label=label)
    axes.scatter(x, y, s=sizes, color=colour, alpha=0.3, linewidths=0, marker=mark, clip_on=False)


def _what(calibration: Mapping[str, Any]) -> str:
    """Whose probability is claimed: where a threshold decides, that of the class which it decides on."""
    thresholds = calibration["thresholds"]
    if thresholds is None:
        return "the predicted class"
    return "a class" if "per_class" in thresholds else f"“{shortened(calibration['classes'][1], 24)}”"
