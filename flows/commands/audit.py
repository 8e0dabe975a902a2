"""`holdfast audit`: which samples trained a run, proved from its ledger.

Invariant: the first line is the verdict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from flows.commands.arguments import AsJson, Assignments, RunArgument, find_run
from flows.commands.results import print_result
from storage.lazy_imports import lazy_imports
from tasks.console.terminal import console

with lazy_imports():
    import rich.progress as bars

    import tasks.audits.verdict as audits
    import tasks.console.tables as tables

if TYPE_CHECKING:
    from storage.objects.store import Store
    from tasks.console.tables import Kind


PHASES = {"samples": "comparing every sample", "epochs": "counting every epoch"}


def audit(run: RunArgument, assignments: Assignments = None, as_json: AsJson = False) -> None:
    """Prove from the ledger which samples trained the model.

    Every sample once per epoch, none skipped, none repeated, in the order that the seed determines, up to the promoted
    checkpoint. Exit code 1 if not, with the steps and the samples.
    """
    found = audit_with_display(*find_run(run, assignments or []))
    print_result(found, as_json, render_audit)
    if not found["ok"]:
        raise typer.Exit(1)


def audit_with_display(store: Store, run: str) -> dict[str, Any]:
    """The audit, with a bar in a terminal while it works."""
    columns = (
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.TaskProgressColumn(),
    )
    with bars.Progress(
        *columns, bars.TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task("reading the ledger", total=1.0)
        return audits.audit_run(
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
            parts += [Text(), tables.show_table(list_rows(result[name]), tables.MOST_ROWS)]
    for violation in result["violations"]:
        parts += [Text(), Text.assemble((violation["kind"].replace("_", " "), "bold red"), f"  {violation['message']}")]
    unnamed = result["num_violations"] - len(result["violations"])
    if unnamed:
        parts += [Text(), Text(f"... and {unnamed:,} more.")]
    return Group(*parts)


def _verdict(result: dict[str, Any]) -> Text:
    counted = f"{result['steps']:,} steps, {result['samples']:,} samples, {result['microbatches']:,} microbatches"
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


def _list_segments(segments: list[dict[str, Any]]) -> tables.Table:
    columns: list[tuple[str, Kind]] = [
        ("Segment", "number"), ("Outcome", "outcome"), ("Ranks", "number"), ("Counted steps", "text"),
        ("Void steps", "text"),
    ]  # fmt: skip
    rows = [
        [
            tables.Cell(str(segment["fence"])),
            tables.Cell(segment["outcome"]),
            tables.Cell(f"{segment['world_size']:,}"),
            *(tables.Cell(_interval(segment[name])) for name in ("counted", "void")),
        ]
        for segment in segments
    ]
    return tables.Table(columns, rows)


def _list_epochs(epochs: list[dict[str, Any]]) -> tables.Table:
    columns: list[tuple[str, Kind]] = [("Epoch", "number"), ("Samples", "number"), ("State", "text")]
    rows = [
        [
            tables.Cell(f"{epoch['epoch']:,}"),
            tables.Cell(f"{epoch['samples']:,}"),
            tables.Cell("complete" if epoch["complete"] else "not complete"),
        ]
        for epoch in epochs
    ]
    return tables.Table(columns, rows)


def _list_skipped(skipped: list[dict[str, Any]]) -> tables.Table:
    columns: list[tuple[str, Kind]] = [
        ("Left out: positions", "text"), ("Samples", "number"), ("Before step", "number"), ("For segment", "number"),
        ("Why", "text"),
    ]  # fmt: skip
    rows = [
        [
            tables.Cell(_interval([entry["first_position"], entry["end_position"]])),
            # The first sample that was trained after the gap is that of this step, counted from 0 as all steps here.
            *(tables.Cell(f"{entry[name]:,}") for name in ("samples", "before_step")),
            tables.Cell(str(entry["fence"])),  # as it is typed behind --segment
            tables.Cell(entry["cause"].partition("\n")[0]),
        ]
        for entry in skipped
    ]
    return tables.Table(columns, rows)


def _interval(bounds: list[int] | None) -> str:
    """Both ends included, as in the messages."""
    return f"{bounds[0]:,} to {bounds[1] - 1:,}" if bounds else "-"
