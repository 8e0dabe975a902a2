"""The advice's tables, made of what `holdfast advise --json` prints.

Invariant: pure, and the same rows on the page and in the terminal.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.advice.cadence_words import brief, dollars, in_seconds, percent
from tasks.console.tables import Cell, Kind, Table
from tasks.text import NOTHING, duration, plain


def intervals_table(intervals: Sequence[Mapping[str, Any]]) -> Table:
    """One row for each interval, the shortest first."""
    columns: list[tuple[str, Kind]] = [
        ("Interval", "number"), ("Overhead", "number"), ("Stall", "number"), ("Done again", "number"),
        ("Restarts", "number"), ("Lost", "number"), ("95 %", "number"),
        ("At most", "number"), ("Storage", "number"), ("GPU time", "number"), ("", "text"),
    ]  # fmt: skip
    rows = [
        [
            Cell(in_seconds(one["interval_seconds"])),
            *(Cell(percent(one[name])) for name in ("overhead", "stall_share", "lost_share", "restart_share")),
            *(Cell(brief(one[f"{name}_lost_seconds"])) for name in ("mean", "p95", "bound")),
            Cell(NOTHING if one["dollars_per_month"] is None else dollars(one["dollars_per_month"])),
            Cell(dollars(one["gpu_dollars_per_month"])),
            Cell(", ".join(one["marks"])),
        ]
        for one in intervals
    ]
    return Table(columns, rows, wide=("Stall", "Done again", "Restarts"))


def scales_table(scales: Sequence[Mapping[str, Any]]) -> Table:
    """One row for each number of GPUs."""
    columns: list[tuple[str, Kind]] = [
        ("GPUs", "number"), ("Between crashes", "number"), ("Best interval", "number"), ("Overhead there", "number"),
        ("Lost", "number"), ("95 %", "number"), ("Overhead as configured", "number"),
    ]  # fmt: skip
    rows = [
        [
            Cell(f"{scale['num_gpus']:,}"),
            Cell(duration(scale["seconds_between_crashes"])),
            Cell(in_seconds(scale["best"]["interval_seconds"])),
            Cell(percent(scale["best"]["overhead"])),
            *(Cell(brief(scale["best"][f"{name}_lost_seconds"])) for name in ("mean", "p95")),
            Cell(percent(scale["configured"]["overhead"])),
        ]
        for scale in scales
    ]
    return Table(columns, rows)


def sources_table(sources: Sequence[Mapping[str, str]]) -> Table:
    """What the advice rests on."""
    columns: list[tuple[str, Kind]] = [("Figure", "text"), ("Value", "number"), ("Where it comes from", "text")]
    rows = [[Cell(one["name"]), Cell(one["value"]), Cell(plain(one["origin"]))] for one in sources]
    return Table(columns, rows)
