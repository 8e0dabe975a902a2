"""The report of a run as it stands, written beside it into the store.

Invariant: the page is made from the manifest, the data set, the promoted checkpoint, the evaluation and calibration of
the one that an export takes, the linear model's figures, and the heartbeat of a segment under way alone, so it can be
made again at any time. Its last line names what it was made of, so it need not be made again of the same.
"""

import json
import time
from collections.abc import Mapping, MutableMapping
from typing import Any

from storage.checkpoints.checkpoints import STATE_NAME
from storage.checkpoints.history import read_whole_history
from storage.checkpoints.results import calibration_key, evaluation_key, find_calibration, find_evaluation
from storage.datasets import DatasetManifest
from storage.errors import CorruptObjectError, ObjectMissingError, ObjectUnreadableError
from storage.lazy_imports import lazy_imports
from storage.objects.addresses import RUNS_FOLDER
from storage.objects.digests import digest_of, sha256_of_bytes
from storage.objects.history import HistoryContent, HistoryPart
from storage.objects.store import Store
from storage.runs.code_version import own_version
from storage.runs.run_state import CheckpointRecord, RunState
from storage.runs.segments import find_heartbeat
from tasks.background import BackgroundThread
from tasks.baselines.record import baseline_key, find_baseline
from tasks.console.announce import warn
from tasks.reporting.views import describe_views

# Matplotlib takes more than a second to load: a run need not wait for that, nor for DuckDB or SciPy, before it begins.
with lazy_imports():
    import tasks.audits.verdict as audit_verdict
    import tasks.baselines.making as making
    import tasks.reporting.data_remarks as data_remarks
    import tasks.reporting.run_page as run_page

# Behind the page: what it was made of, and by what it is known that it is the page which was written.
LAST_LINE = "\n<!-- made of {made_of}, the page has SHA-256 {sha256} -->\n"
NO_HISTORY: dict[str, Any] = {"loss": [], "validation": []}


class ReportLoading(BackgroundThread):
    """A context manager around a wait before audit and report: what they are made with is loaded meanwhile."""

    def __init__(self, with_baseline: bool) -> None:
        super().__init__("report loading")
        self._with_baseline = with_baseline

    def _accompany(self) -> None:
        self.loaded: list[Any] = [audit_verdict.audit_run, data_remarks.find_remarks, run_page.render_report]
        if self._with_baseline:
            self.loaded.append(making.make_baseline)


def report_address(store: Store, run: str) -> str:
    """Where a run's report is."""
    return f"{store.address}/{_key(run)}"


def write_report(
    store: Store, state: RunState, dataset: DatasetManifest, history: Mapping[str, Any] | None = None
) -> None:
    """Write the page, or replace it. Raises `StoreError`. `history` is what `read_history` gave, if it was read."""
    _write(store, state, dataset, history, _find_made_of(store, state))


def put_report(store: Store, state: RunState, dataset: DatasetManifest) -> bool:
    """Write the page unless the one that is there was made of the same; whether it was written. Raises `StoreError`.

    A schedule goes on with a run that is complete for ever: each of its ticks asks for the page.
    """
    made_of = _find_made_of(store, state)
    if made_of is not None and _is_there(store, _key(state.run), made_of):
        return False
    _write(store, state, dataset, None, made_of)
    return True


def make_report(store: Store, state: RunState, dataset: DatasetManifest) -> str:
    """The page as HTML."""
    return _make(store, state, dataset, None)[0]


def _write(
    store: Store, state: RunState, dataset: DatasetManifest, history: Mapping[str, Any] | None, made_of: str | None
) -> None:
    html, is_whole = _make(store, state, dataset, history)
    page = html.encode()
    store.write(_key(state.run), page + _last_line(made_of, page) if made_of is not None and is_whole else page)


def _find_made_of(store: Store, state: RunState) -> str | None:
    """A digest of all that the page is made of, Holdfast's own code included; None while a segment is under way.

    Its heartbeat changes. Of checkpoints and the data set their names are enough. It is found before the page is made:
    what is put meanwhile makes another digest the next time.
    """
    if state.lease is not None:
        return None
    record = _find_tested(state)
    results = [] if record is None else [evaluation_key(record.path), calibration_key(record.path)]
    found = {key: _find_sha256(store, key) for key in [*results, baseline_key(state.run)]}
    return digest_of({"holdfast": own_version().code_sha256, "state": state.model_dump(mode="json"), "results": found})


def _find_sha256(store: Store, key: str) -> str | None:
    try:
        return sha256_of_bytes(store.read(key))
    except ObjectMissingError:
        return None


def _is_there(store: Store, key: str, made_of: str) -> bool:
    """Whether the page in the store was made of this, and each of its bytes is as it was written."""
    try:
        found = store.read(key)
    except (ObjectMissingError, CorruptObjectError, ObjectUnreadableError):
        return False
    page = found[: -len(_last_line(made_of, b""))]
    return found == page + _last_line(made_of, page)


def _last_line(made_of: str, page: bytes) -> bytes:
    return LAST_LINE.format(made_of=made_of, sha256=sha256_of_bytes(page)).encode()


def _make(
    store: Store, state: RunState, dataset: DatasetManifest, history: Mapping[str, Any] | None
) -> tuple[str, bool]:
    """The page, and whether it has all that there is to show; not if the history was read by somebody else."""
    record = _find_tested(state)
    evaluation, calibration = find_evaluation(store, record), find_calibration(store, record)
    remarks = data_remarks.find_remarks(store, state, dataset)
    curves, is_whole = (history, False) if history is not None else _read_history(store, state)
    baseline, deaths = find_baseline(store, state), _find_deaths(store, state)
    page = run_page.render_report(
        state, curves, evaluation, dataset, calibration, remarks or [], baseline, deaths, time.time()
    )
    return page, is_whole and remarks is not None


def _find_tested(state: RunState) -> CheckpointRecord | None:
    """The checkpoint whose test results are shown."""
    tested = state.headline
    return next((kept for kept in state.kept if tested is not None and kept.path == tested.path), state.promoted)


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
    return _read_history(store, state, known)[0]


def _read_history(
    store: Store, state: RunState, known: MutableMapping[HistoryPart, HistoryContent] | None = None
) -> tuple[dict[str, Any], bool]:
    """As `read_history`, and whether that is all."""
    if state.promoted is None:
        return NO_HISTORY, True
    stated = json.loads(store.read(f"{state.promoted.path}/{STATE_NAME}"))
    try:
        return read_whole_history(store, stated, known), True
    except (CorruptObjectError, ObjectUnreadableError) as error:
        warn(f"The report's curves lack their first steps: {error} Training and its result do not depend on them.")
        return stated["history"], False


def _key(run: str) -> str:
    return f"{RUNS_FOLDER}/{run}/report.html"
