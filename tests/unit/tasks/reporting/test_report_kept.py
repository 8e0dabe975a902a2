"""The report in the store is made again when it would show something else, and only then."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from storage.checkpoints.checkpoints import STATE_NAME
from storage.checkpoints.results import calibration_key, evaluation_key, write_result
from storage.objects.history import seal_history
from storage.objects.local_store import LocalStore
from storage.runs.code_version import own_version
from storage.runs.run_state import RunState
from tasks.baselines.record import write_baseline
from tasks.reporting import data_remarks, run_page, written
from tasks.reporting.written import make_report, put_report, write_report
from tests.helpers.counted_requests import Counted, counting
from tests.helpers.finished_runs import Records, interrupted_run
from tests.helpers.runs import lease_at

# Of a complete run: the page, the evaluation, the calibration, and the linear model's figures.
ASKED = {"read": 4}


@pytest.fixture
def run() -> Records:
    return interrupted_run("binary")


@pytest.fixture
def store(tmp_path: Path, run: Records, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    """With what a complete run leaves, and its page, of which only the frame is drawn: the rest takes seconds."""
    monkeypatch.setattr(run_page, "render_report", lambda state, *_: f"<html>{state.run}, drawn</html>")
    store = LocalStore(tmp_path / "store")
    assert run.state.promoted is not None and run.evaluation is not None and run.calibration is not None
    path = run.state.promoted.path
    store.write(f"{path}/{STATE_NAME}", json.dumps({"step": 1200, "history": history_of(run)}).encode())
    write_result(store, evaluation_key(path), run.evaluation)
    write_result(store, calibration_key(path), run.calibration)
    assert put_report(store, run.state, run.dataset)
    return store


def history_of(run: Records) -> dict[str, Any]:
    """As a checkpoint has it."""
    return {"gradient_norm": [], **run.history}


def page(store: LocalStore, run: Records) -> bytes:
    return store.read(f"runs/{run.state.run}/report.html")


def put(store: LocalStore, run: Records, **changes: Any) -> tuple[bool, Counted]:
    """Whether it was written, and what was asked of the store."""
    with counting(store) as counted:
        return put_report(store, run.state.model_copy(update=changes), run.dataset), counted


def test_a_page_that_would_be_the_same_is_read_and_neither_made_nor_written(store: LocalStore, run: Records) -> None:
    before = page(store, run)
    with patch.object(run_page, "render_report") as render, patch.object(store, "write") as write:
        is_written, counted = put(store, run)
    assert not is_written and not render.called and not write.called
    assert counted.requests == ASKED
    assert page(store, run) == before
    assert before.decode().startswith(make_report(store, run.state, run.dataset))


@pytest.mark.parametrize("change", [{"steps_total": 1300}, {"metrics_step": 1200}, {"dataset_sha256": "t" * 64}])
def test_it_is_written_again_when_the_run_is_another_one(
    store: LocalStore, run: Records, change: dict[str, Any]
) -> None:
    assert [put(store, run, **change)[0] for _ in range(2)] == [True, False]
    assert [put(store, run)[0] for _ in range(2)] == [True, False]


def test_it_is_written_again_when_a_result_is_another_one(store: LocalStore, run: Records) -> None:
    assert run.state.promoted is not None and run.evaluation is not None
    path, evaluation = run.state.promoted.path, run.evaluation
    changes: list[Callable[[], object]] = [
        lambda: write_baseline(store, run.state, {"metrics": None, "reason": "there are too few rows"}),
        lambda: write_result(store, evaluation_key(path), evaluation | {"num_samples": 7}),
        lambda: store.delete(calibration_key(path)),
        lambda: store.delete(evaluation_key(path)),
    ]
    for change in changes:
        change()
        assert [put(store, run)[0] for _ in range(2)] == [True, False]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:100] + b"?" + data[101:],
        lambda data: data[:-2] + b"\n",
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: data + b" ",
    ],
)
def test_a_page_that_is_not_as_it_was_written_is_written_again(
    store: LocalStore, run: Records, spoil: Callable[[bytes], bytes]
) -> None:
    before = page(store, run)
    store.write(f"runs/{run.state.run}/report.html", spoil(before))
    assert put(store, run)[0]
    assert page(store, run) == before


def test_a_page_that_is_gone_or_of_another_version_is_written_again(
    store: LocalStore, run: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.delete(f"runs/{run.state.run}/report.html")
    assert put(store, run)[0] and not put(store, run)[0]
    another = own_version().model_copy(update={"code_sha256": "0" * 64})
    monkeypatch.setattr(written, "own_version", lambda: another)
    assert put(store, run)[0] and not put(store, run)[0]


def test_who_asks_for_the_report_gets_it_made_anew(store: LocalStore, run: Records) -> None:
    with patch.object(run_page, "render_report", return_value="<p>anew</p>"):
        write_report(store, run.state, run.dataset)
    assert page(store, run).startswith(b"<p>anew</p>\n<!-- made of ")


def test_the_page_of_a_run_in_training_is_always_written(store: LocalStore, run: Records) -> None:
    for _ in range(2):
        assert put(store, run, lease=lease_at(9, 1200))[0]
    assert b"<!-- made of" not in page(store, run)


def test_a_page_that_lacks_what_could_not_be_read_is_made_again_once_it_can(
    store: LocalStore, run: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    promoted = run.state.promoted
    assert promoted is not None
    part = seal_history(run.state.run, "curve", {"loss": [], "gradient_norm": [], "validation": []}, None)
    earlier = {"earlier": part.part.model_dump(mode="json")}
    stated = {"step": 1200, "history": history_of(run) | earlier}
    store.write(f"{promoted.path}/{STATE_NAME}", json.dumps(stated).encode())
    store.write(part.part.key, b"{}")
    state = run.state.model_copy(update={"created_at": 7.0})
    for _ in range(2):
        assert put_report(store, state, run.dataset)
    part.write(store)
    assert put_report(store, state, run.dataset) and not put_report(store, state, run.dataset)

    with monkeypatch.context() as patched:
        patched.setattr(data_remarks, "find_remarks", lambda *_: None)
        other: RunState = run.state.model_copy(update={"created_at": 8.0})
        for _ in range(2):
            assert put_report(store, other, run.dataset)
    assert put_report(store, other, run.dataset) and not put_report(store, other, run.dataset)
