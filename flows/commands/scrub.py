"""`holdfast scrub`: all that is kept of a run or a store, hashed again.

Invariant: what it looks at and what becomes of damage is decided in `tasks.scrubs` alone; here it is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from flows.commands.arguments import AsJson, Assignments, find_run, is_file
from flows.commands.results import print_result
from storage.lazy_imports import lazy_imports
from tasks.console.terminal import console

with lazy_imports():
    import rich.progress as bars

    import storage.runs.addresses as run_addresses
    import tasks.console.messages as messages
    import tasks.console.tables as tables
    import tasks.scrub as scrub_words
    import tasks.verification.scrubbing as scrubs

if TYPE_CHECKING:
    from storage.objects.store import Store
    from tasks.console.tables import Kind

    Scrubber = Callable[[Store, str | None, Callable[[int], None], float | None], dict[str, Any]]


BYTES_PER_MEGABYTE = 1_000_000


def scrub(
    target: Annotated[
        str, typer.Argument(metavar="STORE|RUN", help="A store, a run's address STORE/runs/NAME, or a configuration.")
    ],
    assignments: Assignments = None,
    megabytes_per_second: Annotated[
        float | None, typer.Option(min=0.001, metavar="N", help="Read no faster than this, on average.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Hash all that is kept again, and report damage.

    Of a run, or of all runs of a store: checkpoints, ledger and data set. Exit code 1 if any of it is damaged. What is
    read is what the store has, not copies on this machine. A damaged checkpoint of a run that is not in training is
    quarantined. With PREFECT_API_URL set, the server gets an event holdfast.rot for each damaged thing. Safe while runs
    are in training; for a schedule, see the deployment `scrub`.
    """
    messages.show_messages()
    names_a_run = bool(assignments) or is_file(target)
    found = scrub_with_display(
        *(find_run(target, assignments or []) if names_a_run else run_addresses.find_target(target)),
        megabytes_per_second,
    )
    print_result(found, as_json, render_scrub)
    if not found["ok"]:
        raise typer.Exit(1)


def scrub_with_display(
    store: Store, run: str | None, megabytes_per_second: float | None = None, scrub_with: Scrubber | None = None
) -> dict[str, Any]:
    """The scrub, with a bar in a terminal while it reads; as `tasks.verification.scrubbing.scrub_store`.

    The command has no Prefect server to ask, so only the deployment gives `scrub_with`, which makes a task of it.
    """
    text = bars.TextColumn("{task.description}", markup=False)
    columns = (bars.SpinnerColumn(), text, bars.BarColumn(), bars.DownloadColumn(), bars.TransferSpeedColumn())
    limit = None if megabytes_per_second is None else megabytes_per_second * BYTES_PER_MEGABYTE
    with bars.Progress(
        *columns, bars.TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task("reading what is kept", total=scrubs.expect_bytes(store, run))
        return (scrub_with or scrubs.scrub_store)(store, run, lambda count: progress.advance(bar, count), limit)


def render_scrub(result: dict[str, Any]) -> RenderableType:
    """The result for a person. What to do about damage was logged when it was found."""
    mark = Text("SOUND", "bold green") if result["ok"] else Text("ROTTEN", "bold red")
    table = _list_findings(result)
    verdict = Text.assemble(mark, f"  {scrub_words.sum_up(result)}")
    address = Text(result["store"], no_wrap=True, overflow="ignore")
    details: list[RenderableType] = [Text(), tables.show_table(table)] if table.rows else []
    return Group(verdict, address, *details)


def _list_findings(result: dict[str, Any]) -> tables.Table:
    columns: list[tuple[str, Kind]] = [("Run", "text"), ("What", "text"), ("State", "outcome"), ("Found", "text")]
    rows = [
        [
            tables.Cell(rot["run"]),
            tables.Cell(rot["kind"] if rot["step"] is None else f"{rot['kind']} of step {rot['step']:,}"),
            _name_state(rot),
            tables.Cell(" ".join(rot["broken"])),
        ]
        for rot in result["damaged"]
    ]
    rows += [
        [tables.Cell(run), tables.Cell(""), tables.Cell("left out", key="preempted"), tables.Cell(reason)]
        for run, reason in result["skipped"].items()
    ]
    return tables.Table(columns, rows)


def _name_state(rot: dict[str, Any]) -> tables.Cell:
    if rot["is_replaced"]:
        return tables.Cell("REPLACED", key="lost")
    return tables.Cell("quarantined", key="preempted") if rot["is_quarantined"] else tables.Cell("DAMAGED", key="lost")
