"""The command `audit`: what `tasks.audits.verdict` found, for a person.

Invariant: the first line is the verdict.
"""

from typing import Any

from rich.console import Group, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from storage.objects.store import Store
from tasks.audits.verdict import audit_run
from tasks.telling.terminal import console

MAX_ROWS_SHOWN = 20
PHASES = {"samples": "comparing every sample", "epochs": "counting every epoch"}


def audit_with_display(store: Store, run: str) -> dict[str, Any]:
    """The audit, with a bar in a terminal while it works."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
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
    if result["segments"]:
        parts += [Text(), _segment_table(result["segments"])]
    if result["epochs"]:
        parts += [Text(), _epoch_table(result["epochs"])]
    if result["skipped"]:
        parts += [Text(), _skipped_table(result["skipped"])]
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
        return Text.assemble(("BROKEN", "bold red"), f"  Run {result['run']}: {what}; {counted} could be looked at.")
    if not result["steps"]:
        return Text(f"Nothing to audit yet: run {result['run']} has no promoted checkpoint.")
    promise = "every sample once per epoch, in the order of the pure functions"
    if result["skipped"]:
        promise += f", but the {sum(entry['samples'] for entry in result['skipped']):,} that rollbacks left out"
    promise += "."
    return Text.assemble(("INTACT", "bold green"), f"  Run {result['run']}: {counted}; {promise}")


def _segment_table(segments: list[dict[str, Any]]) -> Table:
    table = Table("fence", "outcome", "ranks", "counted steps", "void steps", box=None, pad_edge=False)
    for segment in segments[-MAX_ROWS_SHOWN:]:
        counted, void = (_interval(segment[name]) for name in ("counted", "void"))
        table.add_row(str(segment["fence"]), segment["outcome"], str(segment["world_size"]), counted, void)
    return table


def _epoch_table(epochs: list[dict[str, Any]]) -> Table:
    table = Table("epoch", "samples", "state", box=None, pad_edge=False)
    for epoch in epochs[-MAX_ROWS_SHOWN:]:
        state = "complete" if epoch["complete"] else "not complete"
        table.add_row(str(epoch["epoch"]), f"{epoch['samples']:,}", state)
    return table


def _skipped_table(skipped: list[dict[str, Any]]) -> Table:
    table = Table("left out: positions", "samples", "before step", "for segment", "why", box=None, pad_edge=False)
    for entry in skipped[-MAX_ROWS_SHOWN:]:
        positions = _interval([entry["first_position"], entry["end_position"]])
        # The first sample that was trained after the gap is that of this step, counted from 0 as all steps here.
        numbers = (f"{entry['samples']:,}", f"{entry['before_step']:,}", str(entry["fence"]))
        table.add_row(positions, *numbers, Text(entry["cause"].partition("\n")[0]))
    return table


def _interval(bounds: list[int] | None) -> str:
    """Both ends included, as in the messages."""
    return f"{bounds[0]:,} to {bounds[1] - 1:,}" if bounds else "-"
