"""`holdfast runs STORE`: the runs of a store, one line each.

Invariant: reads only. A run that cannot be read is listed with the reason; the others are listed all the same.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from flows.commands.arguments import AsJson, Assignments, is_file
from flows.commands.results import print_result
from storage.errors import HoldfastError, RunMissingError
from storage.lazy_imports import lazy_imports

with lazy_imports():
    import storage.objects.addresses as addresses
    import storage.runs.addresses as run_addresses
    import storage.runs.manifest as manifests
    import tasks.config.load as settings
    import tasks.console.tables as tables
    import tasks.reporting.best as best
    import tasks.reporting.status as run_status
    import tasks.text as words

if TYPE_CHECKING:
    from storage.objects.store import Store
    from storage.runs.run_state import RunState
    from tasks.console.tables import Kind


LISTED = (
    "run", "address", "state", "step", "steps_total", "steps_lost_total", "steps_lost_is_least", "live_step",
    "last_sign_of_life_at",
)  # fmt: skip


def runs(
    target: Annotated[
        str, typer.Argument(metavar="STORE", help="A store, or a configuration file: the store that it names.")
    ],
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """List the runs of a store.

    With state, step, goodput, last sign of life and newest metric of each. `holdfast status STORE` does the same.
    """
    if is_file(target):
        store = addresses.open_store(settings.load_configuration(Path(target), assignments or []).store)
    else:
        store, _run = run_addresses.find_target(target)
    print_result(list_runs(store), as_json, render_runs)


def list_runs(store: Store) -> dict[str, Any]:
    """Every run of a store and where it stands, JSON-able; `error` is why one could not be read.

    Raises `RunMissingError` if there is none.
    """
    names = manifests.find_runs(store)
    if not names:
        raise RunMissingError(
            f"There is no run in the store {store.address}. Check the address, or start a run with `holdfast run`."
        )
    return {"store": store.address, "runs": [_summarise(store, run) for run in names]}


def render_runs(found: dict[str, Any]) -> RenderableType:
    """The list for a person."""
    columns: list[tuple[str, Kind]] = [
        ("Run", "text"), ("State", "outcome"), ("Step", "number"), ("Of", "number"), ("Goodput", "number"),
        ("Last sign", "number"), ("Newest metric", "text"),
    ]  # fmt: skip
    rows = [_list_run(run) for run in found["runs"]]
    broken = [Text(f"{run['run']}: {run['error']}") for run in found["runs"] if run["error"] is not None]
    title = Text(f"{words.count_of(len(rows), 'run')} in {found['store']}", no_wrap=True, overflow="ignore")
    return Group(title, tables.show_table(tables.Table(columns, rows)), *broken)


def _summarise(store: Store, run: str) -> dict[str, Any]:
    try:
        head = manifests.Manifest(store, run).load_head()
        status = run_status.describe_status(store, head)
    except HoldfastError as error:
        return {"run": run, "error": str(error)}
    return {
        **{name: status[name] for name in LISTED},
        "goodput": status["time"]["goodput"] if status["time"] else None,
        "live": status["live"],
        "newest_metric": _find_live_metric(status["live"]) or _find_newest_metric(head.state),
        "error": None,
    }


def _find_live_metric(live: dict[str, Any] | None) -> dict[str, Any] | None:
    """What the ranks that train found in their last validation."""
    found = live["validation"] if live is not None else None
    if found is None or found["value"] is None:
        return None
    return {"name": found["metric"], "value": found["value"], "step": found["step"], "split": "validation"}


def _find_newest_metric(state: RunState) -> dict[str, Any] | None:
    """The headline metric of the test, or else of the newest checkpoint that is kept and was validated."""
    name, tested = best.headline_name(state), state.headline
    if tested is not None and name in tested.metrics:
        return {"name": name, "value": tested.metrics[name], "step": tested.step, "split": "test"}
    validated = (record for record in state.kept if record.metric is not None)
    newest = next(validated, None)
    if newest is None:
        return None
    return {"name": name, "value": newest.metric, "step": newest.step, "split": "validation"}


def _list_run(run: dict[str, Any]) -> list[tables.Cell]:
    if run["error"] is not None:
        return [tables.Cell(run["run"]), tables.Cell("unreadable", key="lost"), *[tables.Cell("")] * 5]
    # The step of the ranks counts for a person who looks; `status` shows what a resume goes on from.
    step = run["step"] if run["live_step"] is None else run["live_step"]
    return [
        tables.Cell(run["run"]),
        tables.Cell(run["state"]),
        tables.Cell(f"{step:,}"),
        tables.Cell(f"{run['steps_total']:,}"),
        tables.Cell(words.NOTHING if run["goodput"] is None else words.share(run["goodput"])),
        tables.Cell(f"{words.duration(max(0.0, time.time() - run['last_sign_of_life_at']))} ago"),
        tables.Cell(_describe_metric(run["newest_metric"])),
    ]


def _describe_metric(metric: dict[str, Any] | None) -> str:
    if metric is None:
        return words.NOTHING
    return f"{words.metric_name(metric['name'])} {words.score(metric['value'])}, {metric['split']}"
