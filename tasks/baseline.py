"""Comparing a complete run with a linear model of its data, so that nobody ships a network that is the worse one.

Invariant: it decides nothing about the run, ends within bounds of work and time, and never fails: where there are no
figures, a sentence says why. What was found once is not computed again.
"""

from typing import Any

from storage.datasets import DatasetManifest
from storage.errors import HoldfastError, StoreError
from storage.lazy_imports import lazy_imports
from storage.runs.run_state import RunState
from tasks.baselines.limits import Limits, NoBaselineError
from tasks.baselines.record import find_baseline, write_baseline
from tasks.configuration.run import RunConfig
from tasks.console.announce import Trouble, announce, warn
from tasks.console.terminal import console
from tasks.data.units.working_folders import working_folder
from tasks.reporting.baseline import describe_baseline, warn_of_baseline
from tasks.run_paths import RunPaths, open_run_paths
from tasks.step import step

with lazy_imports():
    import tasks.baselines.making as making  # and SciPy, which a run need not wait for before it begins


@step("baseline")
def compare_with_baseline(config: RunConfig, dataset: DatasetManifest) -> tuple[None, str]:
    """Record the test metrics of a linear model, unless that was done."""
    run_paths = open_run_paths(config)
    try:
        state = run_paths.manifest.load_head().state
        found = record_baseline(run_paths, state, dataset, Limits())
    except StoreError as error:
        warn(f"The run is not compared with a linear model; `holdfast run` does it when it is started again: {error}")
        return None, Trouble("The store did not answer.")
    return None, _sum_up(state, found)


def record_baseline(run_paths: RunPaths, state: RunState, dataset: DatasetManifest, limits: Limits) -> dict[str, Any]:
    """The run's record, which is made unless there is one that is final. Raises `StoreError` if it cannot be put."""
    found = find_baseline(run_paths.store, state)
    if found is not None and found["is_final"]:
        return found
    announce("Comparing with a linear model on counts of tokens.")
    return write_baseline(run_paths.store, state, _find_figures(run_paths, dataset, limits))


def _find_figures(run_paths: RunPaths, dataset: DatasetManifest, limits: Limits) -> dict[str, Any]:
    """What `make_baseline` finds, or with `metrics` None why there is nothing, as `write_baseline` takes it."""
    try:
        with console.status("training a linear model"), working_folder(run_paths.data_scratch) as folder:
            return making.make_baseline(run_paths.store, dataset, folder, limits)
    except NoBaselineError as none:
        return {"metrics": None, "reason": str(none)}
    except HoldfastError as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001 - whatever it fails by: the run is complete, and stays so
        reason = f"it failed with {type(error).__name__}: {error}"
    warn(f"The run is not compared with a linear model: {reason}")
    return {"metrics": None, "reason": reason, "is_final": False}


def _sum_up(state: RunState, found: dict[str, Any]) -> str:
    return warn_of_baseline(state, found) or describe_baseline(found)
