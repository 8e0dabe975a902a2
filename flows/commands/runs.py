"""`holdfast runs STORE...`: the runs of one store or of several, one line each, and which of them need a person.

Invariant: reads only. A run or a store that cannot be read is listed with the reason; the others are listed all the
same.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from flows.commands.arguments import AsJson, Assignments, open_stores
from flows.commands.results import print_progress, print_result
from storage.lazy_imports import lazy_imports

with lazy_imports():
    import tasks.console.tables as tables
    import tasks.reporting.all_runs as all_runs
    import tasks.reporting.all_runs_page as runs_page
    import tasks.text as words

if TYPE_CHECKING:
    from tasks.console.tables import Kind

# What a narrow terminal has no room for, the first of them first.
LEAST_ASKED_FOR = ("Goodput", "Promoted", "Newest metric", "Last sign")


def runs(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="STORE...", help="Stores, or configuration files: the stores that they name."),
    ],
    assignments: Assignments = None,
    page: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write the list as one HTML page too, in place of the one before."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the runs of stores.

    With state, step, time left, last promotion, last sign of life and newest metric of each, its owner where one is
    configured, and below why a run needs a person. `holdfast status STORE` does the same for one store.
    """
    stores = open_stores(targets, assignments or [])
    readings = all_runs.read_stores(*stores)
    found = all_runs.describe_runs(readings)
    if page is not None:
        # Also where there is no run, and where the only store is away: a page that stays as it was would not say so.
        runs_page.write_runs_page(page, runs_page.render_runs_page(found, time.time()))
        print_progress(f"Page of all runs: {page}")
    all_runs.require_runs(readings)
    print_result(found, as_json, render_runs)


def render_runs(found: dict[str, Any]) -> RenderableType:
    """The list for a person."""
    columns: list[tuple[str, Kind]] = [
        ("Run", "text"), ("Store", "text"), ("Owner", "text"), ("State", "outcome"), ("Step", "number"),
        ("Of", "number"), ("Left", "number"), ("Promoted", "number"), ("Last sign", "number"), ("Goodput", "number"),
        ("Newest metric", "text"),
    ]  # fmt: skip
    is_one = found["store"] is not None
    has_owners = any(run["error"] is None and run["owner"] is not None for run in found["runs"])
    wide = (*(("Store",) if is_one else ()), *(() if has_owners else ("Owner",)))
    table = tables.Table(columns, [_list_run(run) for run in found["runs"]], wide, narrow=LEAST_ASKED_FOR)
    where = found["store"] if is_one else words.count_of(len(found["stores"]), "store")
    title = Text(f"{words.count_of(len(found['runs']), 'run')} in {where}", no_wrap=True, overflow="ignore")
    parts: list[RenderableType] = [title, *([tables.show_table(table)] if found["runs"] else [])]
    parts += [Text(f"{run['run']}: {run['error']}") for run in found["runs"] if run["error"] is not None]
    parts += [Text(f"{one['store']}: {_describe_store(one)}") for one in found["stores"] if not one["num_runs"]]
    waiting = [run for run in found["runs"] if run["error"] is None and run["needs_person"] is not None]
    if waiting:
        parts.append(Text(f"\n{words.count_of(len(waiting), 'run')} in need of a person:", "bold"))
        parts += [Text(f"{run['run'] if is_one else run['address']}: {run['needs_person']}") for run in waiting]
    return Group(*parts)


def _describe_store(store: dict[str, Any]) -> str:
    return str(store["error"]) if store["error"] is not None else "There is no run in this store."


def _list_run(run: dict[str, Any]) -> list[tables.Cell]:
    first = [tables.Cell(run["run"]), tables.Cell(run["store"])]
    if run["error"] is not None:
        return [*first, tables.Cell(""), tables.Cell("unreadable", key="lost"), *[tables.Cell("")] * 7]
    left, now = all_runs.seconds_left(run), time.time()
    return [
        *first,
        tables.Cell(words.NOTHING if run["owner"] is None else run["owner"]),
        tables.Cell(run["state"]),
        tables.Cell(f"{all_runs.shown_step(run):,}"),
        tables.Cell(f"{run['steps_total']:,}"),
        tables.Cell(words.NOTHING if left is None else words.duration(left)),
        tables.Cell(words.ago(run["promoted_at"], now)),
        tables.Cell(words.ago(run["last_sign_of_life_at"], now)),
        tables.Cell(words.NOTHING if run["goodput"] is None else words.share(run["goodput"])),
        tables.Cell(all_runs.describe_metric(run["newest_metric"])),
    ]
