"""All runs of some stores: where each stands, and which of them need a person.

Invariant: reads only. A run or a store that cannot be read is listed with the reason; the others are listed all the
same. So a process that looks again and again goes on over a store that is away.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import storage.runs.manifest as manifests
import tasks.reporting.best as best
import tasks.reporting.needs as needs
import tasks.reporting.status as run_status
from storage.errors import HoldfastError, RunMissingError
from storage.objects.store import Store
from storage.runs.run_state import RunState
from tasks.text import NOTHING, listed, metric_name, score

LISTED = (
    "run", "address", "owner", "state", "step", "steps_total", "steps_lost_total", "steps_lost_is_least", "live_step",
    "last_sign_of_life_at",
)  # fmt: skip


@dataclass(frozen=True)
class StoreReading:
    """What was read of one store: a dictionary for each run, JSON-able; or why its runs could not be listed."""

    address: str
    runs: list[dict[str, Any]]
    error: HoldfastError | None = None


def read_stores(*stores: Store) -> list[StoreReading]:
    """Each of these stores once, in their order. Raises nothing that a store or a run raises."""
    return [_read_store(address, store) for address, store in {store.address: store for store in stores}.items()]


def describe_runs(readings: Sequence[StoreReading]) -> dict[str, Any]:
    """Every run and where it stands, JSON-able; `error` is why a run or a store could not be read."""
    described = [
        {"store": one.address, "num_runs": len(one.runs), "error": None if one.error is None else str(one.error)}
        for one in readings
    ]
    lone = readings[0].address if len(readings) == 1 else None
    return {"store": lone, "stores": described, "runs": [run for one in readings for run in one.runs]}


def require_runs(readings: Sequence[StoreReading]) -> None:
    """Raise `RunMissingError` if there is none in any of the stores, and what reading a lone store raised."""
    if len(readings) == 1 and readings[0].error is not None:
        raise readings[0].error
    if not any(one.runs or one.error for one in readings):
        where = listed([f"the store {one.address}" for one in readings])
        raise RunMissingError(f"There is no run in {where}. Check the address, or start a run with `holdfast run`.")


def list_runs(*stores: Store) -> dict[str, Any]:
    """`describe_runs` of these stores. Raises as `require_runs`."""
    readings = read_stores(*stores)
    require_runs(readings)
    return describe_runs(readings)


def shown_step(run: dict[str, Any]) -> int:
    """The step of the ranks, which counts for a person who looks; `status` shows what a resume goes on from."""
    step: int = run["step"] if run["live_step"] is None else run["live_step"]
    return step


def seconds_left(run: dict[str, Any]) -> float | None:
    """Until its last step, at the speed that its ranks reported last; None where it is not known that they train."""
    left: float | None = run["live"]["seconds_left"] if run["live"] is not None else None
    return left if run["state"] == "running" else None


def describe_metric(metric: dict[str, Any] | None) -> str:
    """'macro-F1 0.8512, validation', of a run's `newest_metric`; a dash where there is none."""
    if metric is None:
        return NOTHING
    return f"{metric_name(metric['name'])} {score(metric['value'])}, {metric['split']}"


def _read_store(address: str, store: Store) -> StoreReading:
    try:
        names = manifests.find_runs(store)
    except HoldfastError as error:
        return StoreReading(address, [], error)
    return StoreReading(address, [{"store": address, **_summarise(store, run)} for run in names])


def _summarise(store: Store, run: str) -> dict[str, Any]:
    try:
        head = manifests.Manifest(store, run).load_head()
        status = run_status.describe_status(store, head)
    except HoldfastError as error:
        return {"run": run, "error": str(error)}
    holder, live = status["holder"], status["live"]
    return {
        **{name: status[name] for name in LISTED},
        "holder": {name: holder[name] for name in ("host", "pid")} if holder is not None else None,
        "goodput": status["time"]["goodput"] if status["time"] else None,
        "live": live,
        "newest_metric": _find_live_metric(live) or _find_newest_metric(head.state),
        "promoted_at": status["promoted"]["promoted_at"] if status["promoted"] else None,
        "save_every_seconds": _find_save_interval(head.state),
        "needs_person": needs.describe_need(status),
        "error": None,
    }


def _find_save_interval(state: RunState) -> float | None:
    """`checkpoint.every_seconds` of the configuration with which the run trained last."""
    checkpoint = state.config.get("checkpoint")
    seconds = checkpoint.get("every_seconds") if isinstance(checkpoint, dict) else None
    return float(seconds) if isinstance(seconds, int | float) else None


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
