"""Putting the report where people find it: in the store beside the run, and in the Prefect UI."""

from storage.datasets import DatasetManifest
from storage.errors import HoldfastError
from storage.runs.run_state import RunState
from tasks.configuration.run import RunConfig
from tasks.console.announce import warn
from tasks.prefect_bridge.server import show
from tasks.reporting.run_summary import summarise
from tasks.reporting.written import report_address, write_report
from tasks.retrying import Patience
from tasks.run_paths import RunPlaces, open_places
from tasks.step import step


@step("report")
def publish_report(config: RunConfig, dataset: DatasetManifest) -> tuple[RunState, str]:
    """Write the HTML report of a run as it stands, and return where it stands."""
    places = open_places(config)
    state = Patience(config.retry).attempt("Writing the report", lambda: _write(places, dataset))
    address = report_address(places.store, config.run)
    show(f"report-{config.run}", summarise(state, config, address))
    return state, address


def leave_report(config: RunConfig, dataset: DatasetManifest) -> None:
    """Write the report of a run that ends before its time, if that works at once. It is no step of the chain."""
    try:
        _write(open_places(config), dataset)
    except HoldfastError as error:
        warn(f"The report could not be written; `holdfast report` does it: {error}")


def _write(places: RunPlaces, dataset: DatasetManifest) -> RunState:
    state = places.manifest.load_head().state
    write_report(places.store, state, dataset)
    return state
