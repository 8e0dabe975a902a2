"""The figures of all runs are what the list says, also between segments, and are served to whoever asks over HTTP."""

import re
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from storage.errors import StoreUnavailableError
from storage.objects.local_store import LocalStore
from tasks.monitoring.all_runs_figures import STATES, AllRunsFigures
from tasks.monitoring.figures import SegmentFigures
from tasks.monitoring.server import serving_all_runs
from tasks.reporting.all_runs import StoreReading, describe_runs, read_stores
from tests.helpers.commands import ROOT
from tests.helpers.finished_runs import state_of
from tests.helpers.many_runs import KINDS, SAVE_SECONDS, STEPS, write_run
from tests.helpers.prefect_server import find_free_port

PAGE = (ROOT / "deployments/operation.md").read_text(encoding="utf-8")
Samples = dict[str, dict[str, float]]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """A run of each kind, named so."""
    store = LocalStore(tmp_path / "store")
    for kind in set(KINDS):
        write_run(store, kind, kind)
    return store


def show(*readings: StoreReading) -> AllRunsFigures:
    figures = AllRunsFigures()
    figures.show(describe_runs(readings))
    return figures


def read(text: str) -> Samples:
    """By figure, the value of each run, or of each store where the figure is of stores; the state it is in as 1."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation and family.type == "gauge", family
        for sample in family.samples:
            key = sample.labels.get("run", sample.labels.get("store", ""))
            if "state" in sample.labels:
                key = f"{key} {sample.labels['state']}"
            found.setdefault(sample.name.removeprefix("holdfast_"), {})[key] = sample.value
    return found


def figures_of(figures: AllRunsFigures) -> Samples:
    registry = CollectorRegistry()
    registry.register(figures)
    return read(generate_latest(registry).decode())


def test_each_run_has_its_figures_whether_anybody_trains_it_or_not(store: LocalStore) -> None:
    found = figures_of(show(*read_stores(store)))
    kinds = set(KINDS)
    assert {name for name, value in found["run_in_training"].items() if value} == {"training"}
    assert {name for name, value in found["run_complete"].items() if value} == {"completed"}
    assert {name for name, value in found["run_needs_person"].items() if value} == {"silent", "failed"}
    assert found["run_step"] == {
        "training": 1_120, "silent": 1_120, "waiting": 1_000, "failed": 863, "completed": STEPS, "new": 0,
    }  # fmt: skip
    assert set(found["run_planned_steps"].values()) == {STEPS} and set(found["run_planned_steps"]) == kinds
    assert found["run_left_seconds"] == {"training": pytest.approx((STEPS - 1_120) * 256 / 2_400, abs=0.1)}
    assert set(found["run_promotion_age_seconds"]) == kinds - {"new"}
    assert 400 <= found["run_promotion_age_seconds"]["training"] < 1_000
    assert set(found["run_save_interval_seconds"].values()) == {SAVE_SECONDS}
    assert 3_600 <= found["run_sign_of_life_age_seconds"]["silent"] < 4_200
    assert found["run_steps_lost"]["failed"] == 137 and found["run_steps_lost"]["completed"] == 0
    assert all(0 < value < 1 for value in found["run_goodput_ratio"].values())
    assert found["run_readable"] == dict.fromkeys(kinds, 1) and found["store_readable"] == {store.address: 1}
    assert found["store_runs"] == {store.address: len(kinds)}


def test_each_run_is_in_one_state_and_all_states_are_there(store: LocalStore) -> None:
    found = figures_of(show(*read_stores(store)))["run_state"]
    stands = {"training": "running", "waiting": "budget", "new": "created"}
    assert {key for key, value in found.items() if value} == {f"{kind} {stands.get(kind, kind)}" for kind in KINDS}
    assert len(found) == len(set(KINDS)) * len(STATES)


def test_what_cannot_be_read_is_a_figure_and_nothing_is_said_of_it_besides(store: LocalStore) -> None:
    (key,) = store.list_keys("runs/new/manifest/")
    store.write(key, b"{}")
    found = figures_of(show(*read_stores(store), StoreReading("s3://away", [], StoreUnavailableError("No answer."))))
    assert found["store_readable"] == {store.address: 1, "s3://away": 0}
    assert {name for name, value in found["run_readable"].items() if not value} == {"new"}
    assert "new" not in found["run_step"] and "training" in found["run_step"]


def test_ages_grow_between_two_readings(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = show(*read_stores(store))
    before = figures_of(figures)
    now, tick = time.time() + 1_000, time.monotonic() + 1_000
    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.setattr(time, "monotonic", lambda: tick)
    after = figures_of(figures)
    for name, run in (
        ("runs_read_age_seconds", ""),
        ("run_promotion_age_seconds", "training"),
        ("run_sign_of_life_age_seconds", "training"),
    ):
        assert 990 < after[name][run] - before[name][run] < 1_100, name


def test_before_the_first_list_only_how_long_ago_it_was_read_is_known() -> None:
    assert set(figures_of(AllRunsFigures())) == {"runs_read_age_seconds"}


def test_no_figure_has_the_name_of_one_of_a_segment(store: LocalStore) -> None:
    of_all = {family.name for family in show(*read_stores(store)).collect()}
    of_a_segment = {family.name for family in SegmentFigures("store", state_of("run", 100, []), 100).collect()}
    assert of_all & of_a_segment == set() and len(of_all) > 10


def test_they_are_served_over_http_and_the_next_list_is_shown(store: LocalStore) -> None:
    port = find_free_port()
    figures = show(*read_stores(store))
    with serving_all_runs(figures, port), httpx.Client(trust_env=False) as client:
        found = read(client.get(f"http://127.0.0.1:{port}/metrics").text)
        assert found["run_step"]["training"] == 1_120
        write_run(store, "another", "completed")
        figures.show(describe_runs(read_stores(store)))
        assert read(client.get(f"http://127.0.0.1:{port}/metrics").text)["run_complete"]["another"] == 1
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False)


def test_a_port_in_use_is_a_warning_that_names_these_figures(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with serving_all_runs(AllRunsFigures(), taken):
            pass
    (said,) = [record.message for record in caplog.records if record.name == "holdfast"]
    assert said.startswith(f"The metrics of all runs cannot be served on 127.0.0.1, port {taken}: Address already in")
    assert "segment" not in said


def test_the_guide_explains_each_figure_and_no_other(store: LocalStore) -> None:
    explained: Any = set(re.findall(r"^\| `(holdfast_\w+)`", PAGE, re.MULTILINE))
    assert explained == {family.name for family in show(*read_stores(store)).collect()}
