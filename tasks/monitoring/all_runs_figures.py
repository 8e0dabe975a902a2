"""The figures of all runs of some stores, as Prometheus reads them: also of those that nobody trains.

Invariant: a scrape reads no store. It shows what was read last, with ages as they are at the scrape, and how long ago
that was read. Names begin with `holdfast_run_`, `holdfast_store_` or `holdfast_runs_`: a segment that trains has
figures of its own, with other names, so that a sum over both counts nothing twice.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tasks.reporting.all_runs import seconds_left, shown_step

LABELS = ("run", "store")
STATES = (
    "created", "running", "silent", "lost", "budget", "preempted", "stopped", "failed", "diverged", "rejected",
    "trained", "completed",
)  # fmt: skip
# Of a run as `describe_runs` has it; None: not known, and left out.
Value = Callable[[dict[str, Any]], float | None]


class AllRunsFigures(Collector):
    """Of the list that was shown to it last. Read by threads of a server while another list is shown."""

    def __init__(self) -> None:
        self._found: dict[str, Any] | None = None
        self._shown_at = time.monotonic()

    def show(self, found: dict[str, Any]) -> None:
        """From now on these are the runs and stores: what `describe_runs` returned, just read."""
        self._found, self._shown_at = found, time.monotonic()

    def collect(self) -> Iterator[Metric]:
        """All figures as they are now; without a list, only how long ago it could have been read."""
        age = time.monotonic() - self._shown_at
        yield GaugeMetricFamily("holdfast_runs_read_age_seconds", "Since the stores were read last.", value=age)
        found = self._found
        if found is None:
            return
        yield _of_stores("store_readable", "Whether the runs of the store could be listed: 1 or 0.", found, _readable)
        yield _of_stores("store_runs", "Runs of the store.", found, lambda store: store["num_runs"])
        runs = found["runs"]
        yield _gauge("run_readable", "Whether the run could be read: 1 or 0.", runs, _readable)
        known = [run for run in runs if run["error"] is None]
        yield _states(known)
        for name, (documentation, value) in _FIGURES.items():
            yield _gauge(name, documentation, known, value)


def _readable(one: dict[str, Any]) -> float:
    return float(one["error"] is None)


def _is_in_training(run: dict[str, Any]) -> float:
    return float(run["state"] == "running" and run["live_step"] is not None)


def _age(field: str) -> Value:
    """Seconds since a moment by the clock that wrote it: never negative, also where that clock is ahead."""
    return lambda run: None if run[field] is None else max(0.0, time.time() - run[field])


def _needs_person(run: dict[str, Any]) -> float:
    return float(run["needs_person"] is not None)


def _is_complete(run: dict[str, Any]) -> float:
    return float(run["state"] == "completed")


_FIGURES: dict[str, tuple[str, Value]] = {
    "run_in_training": ("Whether a process trains the run and gives signs of life: 1 or 0.", _is_in_training),
    "run_complete": ("Whether the run is trained and tested: 1 or 0.", _is_complete),
    "run_needs_person": ("Whether the run does not go on by itself: 1 or 0.", _needs_person),
    "run_step": ("Steps made, as the ranks reported last, or of the resume point.", shown_step),
    "run_planned_steps": ("Steps of the whole run, train.steps.", lambda run: run["steps_total"]),
    "run_left_seconds": ("Until its last step, at the speed of its ranks; nothing while none trains.", seconds_left),
    "run_promotion_age_seconds": ("Since the resume point was promoted; nothing without one.", _age("promoted_at")),
    "run_save_interval_seconds": ("Its checkpoint.every_seconds.", lambda run: run["save_every_seconds"]),
    "run_sign_of_life_age_seconds": ("Since its last heartbeat or manifest entry.", _age("last_sign_of_life_at")),
    "run_goodput_ratio": ("Share of the time since it began in steps that count, 0 to 1.", lambda run: run["goodput"]),
    "run_steps_lost": ("Steps known to have been trained again, or to be.", lambda run: run["steps_lost_total"]),
}


def _states(runs: list[dict[str, Any]]) -> Metric:
    family = GaugeMetricFamily(
        "holdfast_run_state", "Where the run stands: 1 for that state, 0 for others.", labels=(*LABELS, "state")
    )
    for run in runs:
        for state in dict.fromkeys((*STATES, run["state"])):
            family.add_metric((run["run"], run["store"], state), float(run["state"] == state))
    return family


def _gauge(name: str, documentation: str, runs: list[dict[str, Any]], value: Value) -> Metric:
    family = GaugeMetricFamily(f"holdfast_{name}", documentation, labels=LABELS)
    for run in runs:
        found = value(run)
        if found is not None:
            family.add_metric((run["run"], run["store"]), float(found))
    return family


def _of_stores(
    name: str, documentation: str, found: dict[str, Any], value: Callable[[dict[str, Any]], float]
) -> Metric:
    family = GaugeMetricFamily(f"holdfast_{name}", documentation, labels=("store",))
    for store in found["stores"]:
        family.add_metric((store["store"],), value(store))
    return family
