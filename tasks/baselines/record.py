"""What was found of a run's linear model: one object in the run's folder, written when the run is complete.

Invariant: it is of the data set that the run is trained on, and of no weights: whatever is trained on that data set is
compared with the same figures. A run without it, of an earlier version or not complete yet, is none the worse.
"""

from collections.abc import Mapping
from typing import Any

from storage.checkpoints.results import find_result, write_result
from storage.objects.addresses import RUNS_FOLDER
from storage.objects.store import Store
from storage.runs.run_state import RunState

# Another method gives other figures: with another number what was found before is found anew.
BASELINE_FORMAT = 1


def baseline_key(run: str) -> str:
    """Key of the object."""
    return f"{RUNS_FOLDER}/{run}/baseline.json"


def find_baseline(store: Store, state: RunState) -> dict[str, Any] | None:
    """The record of the run, or None. Its `metrics` are None where there are no figures, and `reason` says why.

    `is_final` is whether that would be the same if it was tried again.
    """
    found = find_result(store, baseline_key(state.run))
    if found is None or found.get("format") != BASELINE_FORMAT or found["dataset_sha256"] != state.dataset_sha256:
        return None
    return found


def write_baseline(store: Store, state: RunState, found: Mapping[str, Any]) -> dict[str, Any]:
    """Write what `make_baseline` found, or with `metrics` None why nothing was, and return the record."""
    about = {"format": BASELINE_FORMAT, "dataset_sha256": state.dataset_sha256}
    record = about | {"reason": None, "is_final": True} | dict(found)
    write_result(store, baseline_key(state.run), record)
    return record
