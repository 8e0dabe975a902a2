"""The report of a run as it stands, written beside it into the store.

Invariant: the page is made from the manifest, the data set, the promoted checkpoint, the evaluation and calibration of
the one that an export takes, the linear model's figures, and the heartbeat of a segment under way alone, so it can be
made again at any time.
"""

import json
import time
from collections.abc import Mapping, MutableMapping
from typing import Any

from storage.checkpoints.checkpoints import STATE_NAME
from storage.checkpoints.history import read_whole_history
from storage.checkpoints.results import find_calibration, find_evaluation
from storage.datasets import DatasetManifest
from storage.errors import CorruptObjectError, ObjectUnreadableError
from storage.lazy_imports import lazy_imports
from storage.objects.addresses import RUNS_FOLDER
from storage.objects.history import HistoryContent, HistoryPart
from storage.objects.store import Store
from storage.runs.run_state import RunState
from storage.runs.segments import find_heartbeat
from tasks.background import BackgroundThread
from tasks.baselines.record import find_baseline
from tasks.console.announce import warn
from tasks.reporting.views import describe_views

# Matplotlib takes more than a second to load: a run need not wait for that, nor for DuckDB or SciPy, before it begins.
with lazy_imports():
    import tasks.audits.verdict as audit_verdict
    import tasks.baselines.making as making
    import tasks.reporting.data_remarks as data_remarks
    import tasks.reporting.run_page as run_page

NO_HISTORY: dict[str, Any] = {"loss": [], "validation": []}


class ReportLoading(BackgroundThread):
    """A context manager around a wait before audit and report: what they are made with is loaded meanwhile."""

    def __init__(self, with_baseline: bool) -> None:
        super().__init__("report loading")
        self._with_baseline = with_baseline

    def _accompany(self) -> None:
        self.loaded: list[Any] = [audit_verdict.audit_run, data_remarks.remarks_of, run_page.render_report]
        if self._with_baseline:
            self.loaded.append(making.make_baseline)


def report_address(store: Store, run: str) -> str:
    """Where a run's report is."""
    return f"{store.address}/{_key(run)}"


def write_report(
    store: Store, state: RunState, dataset: DatasetManifest, history: Mapping[str, Any] | None = None
) -> None:
    """Write the page, or replace it. Raises `StoreError`. `history` is what `read_history` gave, if it was read."""
    store.write(_key(state.run), make_report(store, state, dataset, history).encode())


def make_report(
    store: Store, state: RunState, dataset: DatasetManifest, history: Mapping[str, Any] | None = None
) -> str:
    """The page as HTML; `history` as above."""
    tested = state.headline
    record = next((kept for kept in state.kept if tested is not None and kept.path == tested.path), state.promoted)
    evaluation, calibration = find_evaluation(store, record), find_calibration(store, record)
    remarks = data_remarks.remarks_of(store, state, dataset)
    curves, baseline = history or read_history(store, state), find_baseline(store, state)
    deaths = _find_deaths(store, state)
    now = time.time()
    return run_page.render_report(state, curves, evaluation, dataset, calibration, remarks, baseline, deaths, now)


def _find_deaths(store: Store, state: RunState) -> str | None:
    """What is known of the ranks of a segment under way."""
    heartbeat = find_heartbeat(store, state.run, state.lease.fence) if state.lease is not None else None
    return None if heartbeat is None else describe_views(heartbeat.views, heartbeat.view_totals)


def read_history(
    store: Store, state: RunState, known: MutableMapping[HistoryPart, HistoryContent] | None = None
) -> dict[str, Any]:
    """Loss curve and validations up to the resume point; of them what can be read, and a warning if that is not all.

    Whoever reads again and again gives the same `known` each time: what it has of the history is not read again.
    """
    if state.promoted is None:
        return NO_HISTORY
    stated = json.loads(store.read(f"{state.promoted.path}/{STATE_NAME}"))
    try:
        return read_whole_history(store, stated, known)
    except (CorruptObjectError, ObjectUnreadableError) as error:
        warn(f"The report's curves lack their first steps: {error} Training and its result do not depend on them.")
        recent: dict[str, Any] = stated["history"]
        return recent


def _key(run: str) -> str:
    return f"{RUNS_FOLDER}/{run}/report.html"
