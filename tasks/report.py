"""Putting the report where people find it: in the store beside the run, and in the Prefect UI."""

from storage.datasets import DatasetManifest
from storage.errors import HoldfastError
from storage.runs.run_state import RunState
from tasks.baselines.record import find_baseline
from tasks.configuration.run import RunConfig
from tasks.console.announce import warn
from tasks.prefect_bridge.server import show_if_new
from tasks.reporting.baseline import warn_of_baseline
from tasks.reporting.run_summary import summarise
from tasks.reporting.written import put_report, report_address
from tasks.retrying import Retry
from tasks.run_paths import RunPaths, open_run_paths
from tasks.step import step


@step("report")
def publish_report(config: RunConfig, dataset: DatasetManifest) -> tuple[RunState, str]:
    """Have the HTML report of a run as it stands in the store, and its summary in Prefect; where the run stands.

    What shows that already is left as it is.
    """
    run_paths = open_run_paths(config)
    state = Retry(config.retry).call("Writing the report", lambda: _put(run_paths, dataset))
    address = report_address(run_paths.store, config.run)
    warning = warn_of_baseline(state, find_baseline(run_paths.store, state))
    show_if_new(f"report-{config.run}", summarise(state, config, address, warning=warning))
    return state, address


def leave_report(config: RunConfig, dataset: DatasetManifest) -> None:
    """Write the report of a run that ends before its time, if that works at once. It is no step of the chain."""
    try:
        _put(open_run_paths(config), dataset)
    except HoldfastError as error:
        warn(f"The report could not be written; `holdfast report` does it: {error}")


def _put(run_paths: RunPaths, dataset: DatasetManifest) -> RunState:
    state = run_paths.manifest.load_head().state
    put_report(run_paths.store, state, dataset)
    return state
