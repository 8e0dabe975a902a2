"""The report's time line: what the run was at since it began, on the clock, a strip for each day or less.

Invariant: the strips add up to all of the time, and what is between segments stays white. Of a segment the phases are
recorded as sums: they are drawn in the order in which they begin, training with what it lost or waited for at its end.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from storage.runs.run_state import RunState, SegmentRecord
from tasks.reporting.canvas import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, YELLOW, Chart, draw_svg
from tasks.reporting.goodput import PART_NAMES, resume_step, waiting_share
from tasks.text import count_of, duration, moment

COLOURS = {
    "start": GREY, "restore": PURPLE, "useful": GREEN, "input_wait": YELLOW, "again": VERMILION, "validate": SKY,
    "save": ORANGE, "unknown": BLUE,
}  # fmt: skip
DAY_SECONDS = 86400.0
MAX_STRIPS = 14
NUM_TICKS = 6
MOST_COLUMNS = 6  # of the legend: more do not fit beside each other


@dataclass(frozen=True)
class Span:
    """So many seconds of one kind, a key of `COLOURS`, from a Unix time on."""

    kind: str
    began_at: float
    seconds: float


def draw_time_line(state: RunState) -> Chart | None:
    """The time line of all segments that ended; None before the first has."""
    share, kept = waiting_share(state.segments), count_kept(state)
    spans = [part for one, steps in zip(state.segments, kept, strict=True) for part in cut(one, steps, share)]
    if not spans:
        return None
    began_at = min(state.created_at, spans[0].began_at)
    seconds = max(span.began_at + span.seconds for span in spans) - began_at
    num_strips = min(MAX_STRIPS, max(1, math.ceil(seconds / DAY_SECONDS)))
    strip_seconds = seconds / num_strips or 1.0
    draw = partial(_draw, spans=spans, began_at=began_at, strip_seconds=strip_seconds, num_strips=num_strips)
    words = (
        f"Time line of {count_of(len(state.segments), 'segment')} in {duration(seconds)}, from {moment(began_at)} on."
    )
    return Chart(draw_svg(11, 1.25 + 0.42 * num_strips, draw), words)


def count_kept(state: RunState) -> list[int]:
    """The steps of each segment that the resume point has: the others were lost, or left out by a rollback."""
    kept, reach = [], resume_step(state)
    for segment in reversed(state.segments):
        kept.append(max(0, min(segment.last_step, reach) - segment.first_step))
        reach = min(reach, segment.first_step)
    return kept[::-1]


def cut(segment: SegmentRecord, kept_steps: int, waiting_share: float) -> list[Span]:
    """A segment into what it was at; a part that took no time is left out.

    `waiting_share` is that of the others, for one that did not record how long it waited for samples.
    """
    phases, trained = segment.phases, segment.phases.get("train", 0.0)
    steps = segment.last_step - segment.first_step
    waited = trained * (segment.throughput.input_wait_fraction if segment.throughput else waiting_share)
    # Of one that was lost, and of which no report was seen, only the whole is known.
    again = (trained - waited) * (1 - min(1.0, kept_steps / steps)) if steps > 0 else 0.0
    lengths = {
        "start": phases.get("start", 0.0),
        "restore": phases.get("restore", 0.0),
        "useful": trained - waited - again,
        "input_wait": waited,
        "again": again,
        "validate": phases.get("validate", 0.0),
        "save": phases.get("save", 0.0),
    }
    lengths["unknown"] = max(0.0, segment.seconds - sum(lengths.values()))
    spans, at = [], segment.started_at
    for kind, seconds in lengths.items():
        if seconds > 0:
            spans.append(Span(kind, at, seconds))
            at += seconds
    return spans


def _draw(figure: Figure, spans: Sequence[Span], began_at: float, strip_seconds: float, num_strips: int) -> None:
    axes = figure.subplots()
    for kind, colour in COLOURS.items():
        for strip in range(num_strips):
            first = began_at + strip * strip_seconds
            bars = [_clip(span, first, strip_seconds) for span in spans if span.kind == kind]
            axes.broken_barh([bar for bar in bars if bar[1] > 0], (strip - 0.36, 0.72), facecolors=colour, linewidth=0)
    _label(axes, began_at, strip_seconds, num_strips)
    kinds = {span.kind for span in spans}
    shown = [Patch(color=colour, label=PART_NAMES[kind]) for kind, colour in COLOURS.items() if kind in kinds]
    num_columns = min(len(shown), MOST_COLUMNS)
    figure.legend(handles=shown, loc="outside upper left", ncols=num_columns, fontsize=9.5, handlelength=1.1)


def _clip(span: Span, first: float, length: float) -> tuple[float, float]:
    """The part of it within a strip: where it begins there, and how long it is; 0 or less if it is elsewhere."""
    begin, end = max(span.began_at, first), min(span.began_at + span.seconds, first + length)
    return begin - first, end - begin


def _label(axes: Axes, began_at: float, strip_seconds: float, num_strips: int) -> None:
    """With the time at which each strip begins, and hours or less from there on."""
    axes.set_ylim(num_strips - 0.4, -0.6)
    axes.set_xlim(0, strip_seconds)
    begins = (datetime.fromtimestamp(began_at + strip * strip_seconds, UTC) for strip in range(num_strips))
    axes.set_yticks(range(num_strips), [f"{begin:%d %b %H:%M}" for begin in begins])
    ticks = [strip_seconds * n / NUM_TICKS for n in range(NUM_TICKS + 1)]
    axes.set_xticks(ticks, ["", *(f"+ {duration(tick)}" for tick in ticks[1:])])
    axes.spines[:].set_visible(False)
