"""Putting the report where people find it: in the store beside the run, and in the Prefect UI.

Invariant: the page is made from the manifest, the promoted checkpoint and its evaluation alone, so it can be made again
at any time.
"""

import json
from typing import Any

from storage.checkpoints.checkpoints import STATE_NAME
from storage.checkpoints.history import read_whole_history
from storage.datasets import DatasetManifest
from storage.errors import CorruptObjectError
from storage.objects.store import Store
from storage.runs.run_state import RunState
from tasks.configuration import RunConfig
from tasks.evaluate import find_evaluation
from tasks.pages.words import score
from tasks.places import RunPlaces, open_places
from tasks.retrying import Patience
from tasks.step import step
from tasks.telling.announce import warn
from tasks.telling.server import show

NO_HISTORY: dict[str, Any] = {"loss": [], "validation": []}


@step("report")
def publish_report(config: RunConfig, dataset: DatasetManifest) -> tuple[RunState, str]:
    """Write the HTML report of a run as it stands, and return where it stands."""
    places = open_places(config)
    state = Patience(config.retry).attempt("Writing the report", lambda: _write_page(places, dataset))
    show(f"report-{config.run}", _summarise(places, state))
    return state, f"{places.store.address}/{places.report_key}"


def _write_page(places: RunPlaces, dataset: DatasetManifest) -> RunState:
    # Matplotlib takes more than a second to load: a run need not wait for that before it begins.
    from tasks.reports.run_page import render_report

    state = places.manifest.load_head().state
    page = render_report(state, read_history(places.store, state), find_evaluation(places, state), dataset)
    places.store.write(places.report_key, page.encode())
    return state


def read_history(store: Store, state: RunState) -> dict[str, Any]:
    """Loss curve and validations up to the resume point; of them what can be read, and a warning if that is not all."""
    if state.promoted is None:
        return NO_HISTORY
    stated = json.loads(store.read(f"{state.promoted.path}/{STATE_NAME}"))
    try:
        return read_whole_history(store, stated)
    except CorruptObjectError as error:
        warn(f"The report's curves lack their first steps: {error} Training and its result do not depend on them.")
        recent: dict[str, Any] = stated["history"]
        return recent


def _summarise(places: RunPlaces, state: RunState) -> str:
    step = state.promoted.step if state.promoted else 0
    rows = [
        ("step", f"{step:,} of {state.steps_total:,}"),
        ("segments", f"{len(state.segments)}, {state.steps_lost:,} steps lost"),
    ]
    rows += [(name, score(value)) for name, value in (state.metrics or {}).items()]
    rows += [("weights", state.promoted.weights_sha256)] if state.promoted else []
    rows += [("changed", f"{record.what} at step {record.step:,}") for record in state.changes]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    return f"# {state.run}\n\n| | |\n|---|---|\n{table}\n\nFull report: `{places.store.address}/{places.report_key}`\n"
