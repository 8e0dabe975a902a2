"""Text of reports and messages: outcomes, durations, sizes, dates, and text that came from outside.

Invariant: pure. Dates are UTC and come from the records, so the same state always reads the same.
"""

import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from storage.runs.metric_values import METRIC_WORDS, MetricValue
from storage.runs.run_state import RunState, SegmentRecord

NOTHING = "\N{EN DASH}"
MAX_LISTED = 4
OUTCOME_WORDS = {
    "completed": "reached the last step",
    "budget": "ended because its time budget was spent",
    "preempted": "was asked to stop, saved a checkpoint and ended",
    "diverged": "ended because training diverged",
    "failed": "ended with an error",
    "lost": "recorded no outcome: the process or the machine was killed",
}
_EARLY_WORDS = "ended the run early: validation after validation was no better than the best one"
_ABANDONED_WORDS = "saved and left when the process that supervised it was killed"
_OUTCOME_NOUNS = {"budget": "time budget"}
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def outcome_words(segment: SegmentRecord) -> str:
    """How a segment ended, as the rest of a sentence."""
    if segment.patience is not None:
        return _EARLY_WORDS
    return _ABANDONED_WORDS if segment.is_abandoned else OUTCOME_WORDS[segment.outcome]


def how_far(step: int, state: RunState) -> str:
    """'step 200 of 300', and whether that is the end before the last step."""
    early = ", ended early" if state.ended_early and step == state.end_step else ""
    return f"step {step:,} of {state.steps_total:,}{early}"


def plain(text: object) -> str:
    """Text from outside with its control characters made visible: they are not valid in HTML, SVG or a terminal."""
    characters = (" " if c in "\n\r\t" else c for c in str(text))
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in ("Cc", "Cs") else c for c in characters)


def shortened(text: object, length: int) -> str:
    """`plain` text of at most `length` characters."""
    clean = plain(text)
    return clean if len(clean) <= length else clean[: length - 1].rstrip() + "…"


def told_apart(names: Iterable[object], length: int) -> list[str]:
    """`names` of at most `length` characters each, none equal to another: of those that are cut alike the end is shown.

    Where that is the same too, as of names that differ in the middle or in control characters alone, each has its
    number among all of them.
    """
    names = list(names)
    cut = [shortened(name, length) for name in names]
    cut = [
        _both_ends(name, length) if again else one for name, one, again in zip(names, cut, _repeated(cut), strict=True)
    ]
    repeated = _repeated(cut)
    numbers = [f" #{index:,}" if again else "" for index, again in enumerate(repeated, 1)]
    return [shortened(one, length - len(number)) + number for one, number in zip(cut, numbers, strict=True)]


def _repeated(names: Sequence[str]) -> list[bool]:
    counts = Counter(names)
    return [counts[name] > 1 for name in names]


def _both_ends(name: object, length: int) -> str:
    clean = plain(name)
    if len(clean) <= length:
        return clean
    tail = length // 2
    return f"{clean[: length - tail - 1].rstrip()}…{clean[-tail:].lstrip()}"


def count_of(number: int, noun: str) -> str:
    """'1 step', '1,200 steps'."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def at_least(number: str, is_least: bool) -> str:
    """'14 steps', or 'at least 14 steps' where more are possible that nobody lived to report."""
    return f"at least {number}" if is_least else number


def listed(names: Iterable[str], most: int = MAX_LISTED) -> str:
    """'a, b and c', or 'a, b, c, d and 7 more'."""
    names = list(names)
    shown = names[:most] + ([f"{len(names) - most:,} more"] if len(names) > most else [])
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


def duration(seconds: float) -> str:
    """Two units at most: '0.4 s', '37 s', '4 min 12 s', '2 h 5 min', '3 d 4 h'."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    total = round(seconds)
    for size, unit, smaller_size, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if total >= size:
            rest = total % size // smaller_size
            return f"{total // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{total} s"


def ago(unix_time: float | None, now: float) -> str:
    """'4 min 12 s ago', or a dash; a time to come, of a clock that is ahead, is '0.0 s ago'."""
    return NOTHING if unix_time is None else f"{duration(max(0.0, now - unix_time))} ago"


def size(num_bytes: int) -> str:
    """Decimal units: '12.3 MB'."""
    value, index = float(num_bytes), 0
    while value >= 999.5 and index < len(_UNITS) - 1:
        value, index = value / 1000, index + 1
    return f"{value:.0f} {_UNITS[index]}" if index == 0 or value >= 99.5 else f"{value:.1f} {_UNITS[index]}"


def moment(unix_time: float) -> str:
    """'2026-11-14 08:12 UTC'."""
    return datetime.fromtimestamp(unix_time, UTC).strftime("%Y-%m-%d %H:%M UTC")


def share(fraction: float) -> str:
    """'8.1 %'."""
    return f"{100 * fraction:.1f} %"


def score(value: MetricValue | None) -> str:
    """A metric with four digits, 'nan' or 'inf' where it is not finite, or a dash."""
    return NOTHING if value is None else f"{float(value):.4f}"


def metric_name(name: str) -> str:
    """'macro-F1' for macro_f1; an unknown metric keeps its own name."""
    return METRIC_WORDS.get(name, plain(name).replace("_", " "))


def interruptions_of(segments: Sequence[SegmentRecord]) -> list[SegmentRecord]:
    """The segments that ended before the run did."""
    return [segment for segment in segments if segment.outcome != "completed"]


def outcome_counts(segments: Sequence[SegmentRecord]) -> str:
    """'2 preempted, 1 lost', the most frequent first."""
    counts = Counter(segment.outcome for segment in segments)
    return ", ".join(f"{count:,} {outcome_noun(outcome)}" for outcome, count in counts.most_common())


def outcome_noun(outcome: str) -> str:
    return _OUTCOME_NOUNS.get(outcome, outcome)


def listing(values: Any, prefix: str = "") -> list[str]:
    """A nested configuration as `section.key = value` lines, in the form that `--set` takes."""
    lines: list[str] = []
    for key, value in values.items():
        if isinstance(value, dict):
            lines += listing(value, f"{prefix}{key}.")
        else:
            shown = "(not set)" if value is None else json.dumps(value, ensure_ascii=False)
            lines.append(plain(f"{prefix}{key} = {shown}"))
    return lines
