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
    import tasks.reporting.needs as needs
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
    targets: Annotated[
        list[str],
        typer.Argument(metavar="STORE...", help="Stores, or configuration files: the stores that they name."),
    ],
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """List the runs of stores.

    With state, step, time left, last promotion, last sign of life and newest metric of each, and below why a run needs
    a person. `holdfast status STORE` does the same for one store.
    """
    stores = [_open(target, assignments or []) for target in targets]
    print_result(list_runs(*stores), as_json, render_runs)


def _open(target: str, assignments: list[str]) -> Store:
    if is_file(target):
        return addresses.open_store(settings.load_configuration(Path(target), assignments).store)
    store, _run = run_addresses.find_target(target)
    return store


def list_runs(*stores: Store) -> dict[str, Any]:
    """Every run of these stores and where it stands, JSON-able; `error` is why a run or a store could not be read.

    Raises `RunMissingError` if there is none in any of them, and what reading a lone store raises.
    """
    by_address = {store.address: store for store in stores}
    found: list[dict[str, Any]] = []
    listed: list[dict[str, Any]] = []
    for address, store in by_address.items():
        try:
            names, error = manifests.find_runs(store), None
        except HoldfastError as unread:
            if len(by_address) == 1:
                raise
            names, error = [], str(unread)
        listed.append({"store": address, "num_runs": len(names), "error": error})
        found += [{"store": address, **_summarise(store, run)} for run in names]
    if not found and not any(store["error"] for store in listed):
        where = words.listed([f"the store {address}" for address in by_address])
        raise RunMissingError(f"There is no run in {where}. Check the address, or start a run with `holdfast run`.")
    lone = listed[0]["store"] if len(listed) == 1 else None
    return {"store": lone, "stores": listed, "runs": found}


def render_runs(found: dict[str, Any]) -> RenderableType:
    """The list for a person."""
    columns: list[tuple[str, Kind]] = [
        ("Run", "text"), ("Store", "text"), ("State", "outcome"), ("Step", "number"), ("Of", "number"),
        ("Left", "number"), ("Promoted", "number"), ("Last sign", "number"), ("Goodput", "number"),
        ("Newest metric", "text"),
    ]  # fmt: skip
    is_one = found["store"] is not None
    table = tables.Table(columns, [_list_run(run) for run in found["runs"]], wide=("Store",) if is_one else ())
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
        "promoted_at": status["promoted"]["promoted_at"] if status["promoted"] else None,
        "needs_person": needs.describe_need(status),
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
    first = [tables.Cell(run["run"]), tables.Cell(run["store"])]
    if run["error"] is not None:
        return [*first, tables.Cell("unreadable", key="lost"), *[tables.Cell("")] * 7]
    # The step of the ranks counts for a person who looks; `status` shows what a resume goes on from.
    step = run["step"] if run["live_step"] is None else run["live_step"]
    left = run["live"]["seconds_left"] if run["live"] is not None else None
    return [
        *first,
        tables.Cell(run["state"]),
        tables.Cell(f"{step:,}"),
        tables.Cell(f"{run['steps_total']:,}"),
        tables.Cell(words.NOTHING if left is None else words.duration(left)),
        tables.Cell(_ago(run["promoted_at"])),
        tables.Cell(_ago(run["last_sign_of_life_at"])),
        tables.Cell(words.NOTHING if run["goodput"] is None else words.share(run["goodput"])),
        tables.Cell(_describe_metric(run["newest_metric"])),
    ]


def _ago(unix_time: float | None) -> str:
    return words.NOTHING if unix_time is None else f"{words.duration(max(0.0, time.time() - unix_time))} ago"


def _describe_metric(metric: dict[str, Any] | None) -> str:
    if metric is None:
        return words.NOTHING
    return f"{words.metric_name(metric['name'])} {words.score(metric['value'])}, {metric['split']}"
