"""`holdfast status STORE`: the runs of a store, one line each.

Invariant: reads only. A run that cannot be read is listed with the reason; the others are listed all the same.
"""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flows.commands.status import read_status
from storage.errors import HoldfastError
from storage.objects.store import Store
from storage.runs.manifest import find_runs
from tasks.pages.words import count_of

LISTED = ("run", "address", "state", "step", "steps_total", "steps_lost_total")


def list_runs(store: Store) -> dict[str, Any]:
    """Every run of a store and where it stands, JSON-able; `error` says why one could not be read."""
    return {"store": store.address, "runs": [_summarise(store, run) for run in find_runs(store)]}


def render_runs(found: dict[str, Any]) -> RenderableType:
    """The list for a person."""
    table = Table("run", "state", "step", "of", "steps lost", box=None, pad_edge=False)
    for column in table.columns[2:]:
        column.justify = "right"
    broken = []
    for run in found["runs"]:
        if run["error"] is not None:
            table.add_row(run["run"], Text("unreadable", "bold red"))
            broken.append(Text(f"{run['run']}: {run['error']}"))
            continue
        numbers = (f"{run[name]:,}" for name in ("step", "steps_total", "steps_lost_total"))
        table.add_row(run["run"], Text(run["state"], "bold cyan"), *numbers)
    title = Text(f"{count_of(len(found['runs']), 'run')} in {found['store']}", no_wrap=True, overflow="ignore")
    return Group(title, table, *broken)


def _summarise(store: Store, run: str) -> dict[str, Any]:
    try:
        status = read_status(store, run)
    except HoldfastError as error:
        return {"run": run, "error": str(error)}
    return {name: status[name] for name in LISTED} | {"error": None}
