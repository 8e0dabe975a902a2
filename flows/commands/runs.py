"""`holdfast status STORE`: the runs of a store, one line each.

Invariant: reads only. A run that cannot be read is listed with the reason; the others are listed all the same.
"""

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from flows.commands.status import read_status
from storage.errors import HoldfastError
from storage.objects.store import Store
from storage.runs.manifest import find_runs
from tasks.pages.tables import Cell, Kind, Table, show_table
from tasks.pages.words import count_of

LISTED = ("run", "address", "state", "step", "steps_total", "steps_lost_total")


def list_runs(store: Store) -> dict[str, Any]:
    """Every run of a store and where it stands, JSON-able; `error` says why one could not be read."""
    return {"store": store.address, "runs": [_summarise(store, run) for run in find_runs(store)]}


def render_runs(found: dict[str, Any]) -> RenderableType:
    """The list for a person."""
    columns: list[tuple[str, Kind]] = [
        ("Run", "text"), ("State", "outcome"), ("Step", "number"), ("Of", "number"), ("Steps lost", "number"),
    ]  # fmt: skip
    rows, broken = [], []
    for run in found["runs"]:
        if run["error"] is not None:
            rows.append([Cell(run["run"]), Cell("unreadable", key="lost"), Cell(""), Cell(""), Cell("")])
            broken.append(Text(f"{run['run']}: {run['error']}"))
            continue
        numbers = (Cell(f"{run[name]:,}") for name in ("step", "steps_total", "steps_lost_total"))
        rows.append([Cell(run["run"]), Cell(run["state"]), *numbers])
    title = Text(f"{count_of(len(found['runs']), 'run')} in {found['store']}", no_wrap=True, overflow="ignore")
    return Group(title, show_table(Table(columns, rows)), *broken)


def _summarise(store: Store, run: str) -> dict[str, Any]:
    try:
        status = read_status(store, run)
    except HoldfastError as error:
        return {"run": run, "error": str(error)}
    return {name: status[name] for name in LISTED} | {"error": None}
