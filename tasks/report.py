"""Putting the report where people find it: in the store beside the run, and in the Prefect UI."""

from storage.datasets import DatasetManifest
from storage.runs.run_state import RunState
from tasks.configuration import RunConfig
from tasks.pages.words import score
from tasks.places import RunPlaces, open_places
from tasks.reports.written import report_address, write_report
from tasks.retrying import Patience
from tasks.step import step
from tasks.telling.server import show


@step("report")
def publish_report(config: RunConfig, dataset: DatasetManifest) -> tuple[RunState, str]:
    """Write the HTML report of a run as it stands, and return where it stands."""
    places = open_places(config)
    state = Patience(config.retry).attempt("Writing the report", lambda: _write(places, dataset))
    address = report_address(places.store, config.run)
    show(f"report-{config.run}", _summarise(state, address))
    return state, address


def _write(places: RunPlaces, dataset: DatasetManifest) -> RunState:
    state = places.manifest.load_head().state
    write_report(places.store, state, dataset)
    return state


def _summarise(state: RunState, address: str) -> str:
    step = state.promoted.step if state.promoted else 0
    rows = [
        ("step", f"{step:,} of {state.steps_total:,}"),
        ("segments", f"{len(state.segments)}, {state.steps_lost:,} steps lost"),
    ]
    rows += [(name, score(value)) for name, value in (state.metrics or {}).items()]
    rows += [("weights", state.promoted.weights_sha256)] if state.promoted else []
    rows += [("changed", f"{record.what} at step {record.step:,}") for record in state.changes]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    return f"# {state.run}\n\n| | |\n|---|---|\n{table}\n\nFull report: `{address}`\n"
