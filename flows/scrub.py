"""Looking for rot: the command `scrub`, and the flow behind the deployment of the same name.

Invariant: what it looks at and what becomes of damage is decided in `tasks.scrubs` alone; here it is shown.
"""

from collections.abc import Callable
from typing import Annotated, Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from pydantic import Field
from rich.console import Group, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from flows.deployed import describe_failure, told
from storage.errors import HoldfastError
from storage.objects.store import Store
from storage.runs.addresses import find_target
from tasks.pages.tables import Cell, Kind, Table, show_table
from tasks.scrub import scrub_kept, sum_up
from tasks.scrubs.scrub import expect_bytes, scrub_store
from tasks.telling.terminal import console

BYTES_PER_MEGABYTE = 1_000_000

Scrubber = Callable[[Store, str | None, Callable[[int], None], float | None], dict[str, Any]]


@flow(name="scrub", flow_run_name="{address}", persist_result=False, retries=0)
def scrub(address: str, megabytes_per_second: Annotated[float, Field(gt=0)] | None = None) -> State[None]:
    """Reads every byte that is kept of one run, or of all runs of a store, and fails if some of them have rotted.

    For each damaged thing it sends an event `holdfast.rot`. A damaged checkpoint of a run that nobody trains is set
    aside. Runs may be in training meanwhile.

    Args:
        address: A store, or a run's address STORE/runs/NAME; a folder is relative to the deployment's one or absolute.
        megabytes_per_second: Read no faster than this, on average; as fast as it goes if left empty.
    """
    try:
        result = scrub_with_display(*find_target(address), megabytes_per_second, scrub_with=scrub_kept)
    except HoldfastError as error:
        return told(describe_failure(error))
    if result["ok"]:
        return told(Completed(message=sum_up(result)))
    return told(Failed(message=" ".join([sum_up(result), *(rot["message"] for rot in result["damaged"])])))


def scrub_with_display(
    store: Store, run: str | None, megabytes_per_second: float | None = None, scrub_with: Scrubber = scrub_store
) -> dict[str, Any]:
    """The scrub, with a bar in a terminal while it reads; as `tasks.scrubs.scrub.scrub_store`.

    The command has no Prefect server to ask, so only the flow makes a task of it.
    """
    text = TextColumn("{task.description}", markup=False)
    columns = (SpinnerColumn(), text, BarColumn(), DownloadColumn(), TransferSpeedColumn())
    limit = None if megabytes_per_second is None else megabytes_per_second * BYTES_PER_MEGABYTE
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task("reading what is kept", total=expect_bytes(store, run))
        return scrub_with(store, run, lambda count: progress.advance(bar, count), limit)


def render_scrub(result: dict[str, Any]) -> RenderableType:
    """The result for a person. What to do about damage was said when it was found."""
    mark = Text("SOUND", "bold green") if result["ok"] else Text("ROTTEN", "bold red")
    table = _list_findings(result)
    verdict = Text.assemble(mark, f"  {sum_up(result)}")
    address = Text(result["store"], no_wrap=True, overflow="ignore")
    details: list[RenderableType] = [Text(), show_table(table)] if table.rows else []
    return Group(verdict, address, *details)


def _list_findings(result: dict[str, Any]) -> Table:
    columns: list[tuple[str, Kind]] = [("Run", "text"), ("What", "text"), ("State", "outcome"), ("Found", "text")]
    rows = [
        [
            Cell(rot["run"]),
            Cell(rot["kind"] if rot["step"] is None else f"{rot['kind']} of step {rot['step']:,}"),
            _name_state(rot),
            Cell(" ".join(rot["broken"])),
        ]
        for rot in result["damaged"]
    ]
    rows += [
        [Cell(run), Cell(""), Cell("left out", key="preempted"), Cell(reason)]
        for run, reason in result["skipped"].items()
    ]
    return Table(columns, rows)


def _name_state(rot: dict[str, Any]) -> Cell:
    if rot["is_replaced"]:
        return Cell("REPLACED", key="lost")
    return Cell("set aside", key="preempted") if rot["is_set_aside"] else Cell("DAMAGED", key="lost")
