"""The command `audit`: what `tasks.audits.verdict` found, for a person.

Invariant: the first line is the verdict.
"""

from typing import Any

from rich.console import Group, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from storage.objects.store import Store
from tasks.audits.verdict import audit_run
from tasks.pages.tables import MOST_ROWS, Cell, Kind, Table, show_table
from tasks.telling.terminal import console

PHASES = {"samples": "comparing every sample", "epochs": "counting every epoch"}


def audit_with_display(store: Store, run: str) -> dict[str, Any]:
    """The audit, with a bar in a terminal while it works."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task("reading the ledger", total=1.0)
        return audit_run(
            store,
            run,
            lambda phase, share: progress.update(bar, description=PHASES[phase], completed=share),
        )


def render_audit(result: dict[str, Any]) -> RenderableType:
    """The result for a person."""
    address = Text(result["address"], no_wrap=True, overflow="ignore")
    parts: list[RenderableType] = [_verdict(result), address]
    lists = (("segments", _list_segments), ("epochs", _list_epochs), ("skipped", _list_skipped))
    for name, list_rows in lists:
        if result[name]:
            parts += [Text(), show_table(list_rows(result[name]), MOST_ROWS)]
    for violation in result["violations"]:
        parts += [Text(), Text.assemble((violation["kind"].replace("_", " "), "bold red"), f"  {violation['message']}")]
    unnamed = result["num_violations"] - len(result["violations"])
    if unnamed:
        parts += [Text(), Text(f"... and {unnamed:,} more.")]
    return Group(*parts)


def _verdict(result: dict[str, Any]) -> Text:
    counted = f"{result['steps']:,} steps, {result['samples']:,} samples, {result['leaves']:,} leaves"
    if not result["ok"]:
        number = result["num_violations"]
        what = "1 violation" if number == 1 else f"{number:,} violations"
        return Text.assemble(("BROKEN", "bold red"), f"  Run {result['run']}: {what}; {counted} could be checked.")
    if not result["steps"]:
        return Text(f"Nothing to audit yet: run {result['run']} has no promoted checkpoint.")
    promise = "every sample was used once per epoch, in the order that the seed gives"
    if result["skipped"]:
        promise += f", except the {sum(entry['samples'] for entry in result['skipped']):,} that rollbacks left out"
    promise += "."
    return Text.assemble(("INTACT", "bold green"), f"  Run {result['run']}: {counted}; {promise}")


def _list_segments(segments: list[dict[str, Any]]) -> Table:
    columns: list[tuple[str, Kind]] = [
        ("Fence", "number"), ("Outcome", "outcome"), ("Ranks", "number"), ("Counted steps", "text"),
        ("Void steps", "text"),
    ]  # fmt: skip
    rows = [
        [
            Cell(f"{segment['fence']:,}"),
            Cell(segment["outcome"]),
            Cell(f"{segment['world_size']:,}"),
            *(Cell(_interval(segment[name])) for name in ("counted", "void")),
        ]
        for segment in segments
    ]
    return Table(columns, rows)


def _list_epochs(epochs: list[dict[str, Any]]) -> Table:
    columns: list[tuple[str, Kind]] = [("Epoch", "number"), ("Samples", "number"), ("State", "text")]
    rows = [
        [
            Cell(f"{epoch['epoch']:,}"),
            Cell(f"{epoch['samples']:,}"),
            Cell("complete" if epoch["complete"] else "not complete"),
        ]
        for epoch in epochs
    ]
    return Table(columns, rows)


def _list_skipped(skipped: list[dict[str, Any]]) -> Table:
    columns: list[tuple[str, Kind]] = [
        ("Left out: positions", "text"), ("Samples", "number"), ("Before step", "number"), ("For segment", "number"),
        ("Why", "text"),
    ]  # fmt: skip
    rows = [
        [
            Cell(_interval([entry["first_position"], entry["end_position"]])),
            # The first sample that was trained after the gap is that of this step, counted from 0 as all steps here.
            *(Cell(f"{entry[name]:,}") for name in ("samples", "before_step", "fence")),
            Cell(entry["cause"].partition("\n")[0]),
        ]
        for entry in skipped
    ]
    return Table(columns, rows)


def _interval(bounds: list[int] | None) -> str:
    """Both ends included, as in the messages."""
    return f"{bounds[0]:,} to {bounds[1] - 1:,}" if bounds else "-"
