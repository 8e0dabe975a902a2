"""Which runs need a person: those that do not go on by themselves, and no other one."""

import io
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from flows.commands.runs import render_runs
from storage.errors import RunMissingError, StoreUnavailableError
from storage.objects.local_store import LocalStore
from storage.runs.holders import this_process
from storage.runs.retention import RetentionPolicy
from storage.runs.run_state import RejectedRecord, RunState, SegmentRecord, ValidationFigures
from storage.runs.segments import Heartbeat, write_heartbeat
from storage.runs.transitions import end_segment, promote, take_lease
from tasks.reporting.all_runs import list_runs
from tasks.reporting.needs import UNATTENDED_SECONDS
from tests.helpers.runs import lease_run, make_checkpoint, make_run, record_of

HOUR = 3600.0


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything was written an hour ago."""
    monkeypatch.setattr("tasks.reporting.needs.time", SimpleNamespace(time=lambda: time.time() + HOUR))


def need_of(store: LocalStore) -> str | None:
    (run,) = list_runs(store)["runs"]
    found: str | None = run["needs_person"]
    return found


def end_as(store: LocalStore, outcome: Any, cause: str = "", last_step: int = 40, **fields: Any) -> None:
    """A run of 100 steps whose only segment ended so."""
    manifest = make_run(store)
    record = SegmentRecord(
        fence=lease_run(manifest), outcome=outcome, cause=cause, first_step=0, last_step=last_step, world_size=1,
        planned_steps=100, started_at=0.0, seconds=9.0, steps_lost=0, phases={}, **fields,
    )  # fmt: skip
    manifest.commit("ended", end_segment(record))


@pytest.mark.parametrize("outcome", ["failed", "lost", "preempted", "budget"])
def test_a_run_that_ended_a_moment_ago_is_left_to_its_retries(store: LocalStore, outcome: str) -> None:
    end_as(store, outcome, "rank 1 failed")
    assert need_of(store) is None


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("outcome", ["preempted", "budget"])
def test_one_that_ended_in_good_order_waits_for_its_schedule(store: LocalStore, outcome: str) -> None:
    end_as(store, outcome)
    assert need_of(store) is None


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("outcome", ["failed", "lost"])
def test_one_with_an_error_that_nobody_has_taken_up_since(store: LocalStore, outcome: str) -> None:
    end_as(store, outcome, "Rank 1 found a full disk.")
    assert need_of(store) == (
        "Its last segment ended with an error, 1 h ago: Rank 1 found a full disk. `holdfast run` goes on from step 0."
    )


def test_what_trying_again_does_not_help_is_told_at_once(store: LocalStore) -> None:
    end_as(store, "failed", "The GPU of before is missing", is_final=True)
    assert need_of(store) == "Its last segment could not run, and would fail again: The GPU of before is missing."


def test_divergence_is_told_at_once(store: LocalStore) -> None:
    end_as(store, "diverged", "the loss is nan at step 40")
    assert need_of(store) == "Training diverged, and no rollback is left or allowed: the loss is nan at step 40."


def test_a_model_that_the_gate_did_not_let_pass(store: LocalStore, tmp_path: Path) -> None:
    manifest = make_run(store)
    fence = lease_run(manifest)
    record = record_of(make_checkpoint(store, tmp_path, 100, fence))
    figures = ValidationFigures(metric="macro_f1", value=0.2, step=100, best_value=0.2, best_step=100)
    rejected = RejectedRecord(checkpoint=record, validation=figures, reason="macro-F1 0.2 < 0.5", rejected_at=1.0)

    def reject(state: RunState, _: float) -> RunState:
        ended = SegmentRecord(
            fence=fence, outcome="completed", cause="", first_step=0, last_step=100, world_size=1, planned_steps=100,
            started_at=0.0, seconds=9.0, steps_lost=0, phases={},
        )  # fmt: skip
        return state.model_copy(update={"rejected": [rejected], "segments": [ended], "lease": None})

    manifest.commit("rejected", reject)
    assert need_of(store) == (
        "The quality gate did not let the model of step 100 pass: macro-F1 0.2 < 0.5. It is kept. Change the gate, or "
        "train on."
    )


def test_a_run_that_is_trained_needs_nobody(store: LocalStore) -> None:
    lease_run(make_run(store))
    assert need_of(store) is None


@pytest.mark.usefixtures("later")
def test_a_holder_that_was_killed_here_and_nobody_goes_on(store: LocalStore) -> None:
    dead = this_process().model_copy(update={"pid": 2**22 - 1})
    make_run(store).commit("segment began", take_lease(dead, 1))
    need = need_of(store)
    assert need is not None and "was killed, and nobody has gone on for 1 h" in need


def test_a_holder_elsewhere_that_is_not_heard_of(store: LocalStore) -> None:
    manifest = make_run(store)
    elsewhere = this_process().model_copy(update={"host": "elsewhere", "pid_scope": "another boot"})
    lease = manifest.commit("segment began", take_lease(elsewhere, 1)).state.lease
    assert lease is not None
    heartbeat = Heartbeat(beat=1, step=7, written_at=time.time() - UNATTENDED_SECONDS)
    write_heartbeat(store, "run", lease.fence, heartbeat)
    need = need_of(store)
    assert need is not None and need.startswith(f"No heartbeat from process {elsewhere.pid} on elsewhere for 10 min")


def shown(found: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(render_runs(found), crop=False)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_runs_of_several_stores_are_one_list_and_a_store_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, away = (LocalStore(tmp_path / name) for name in ("first", "second", "away"))
    end_as(first, "diverged", "the loss is nan")
    manifest = make_run(second, "other")
    record = record_of(make_checkpoint(second, tmp_path / "files", 10, lease_run(manifest), run="other"))
    manifest.commit("promoted", promote(record, RetentionPolicy(newest=3)))

    def find_runs(store: LocalStore) -> list[str]:
        if store is away:
            raise StoreUnavailableError("It does not answer.")
        return ["run" if store is first else "other"]

    monkeypatch.setattr("storage.runs.manifest.find_runs", find_runs)
    found = list_runs(first, second, away, first)
    assert [(run["store"], run["run"]) for run in found["runs"]] == [(first.address, "run"), (second.address, "other")]
    assert [store["error"] for store in found["stores"]] == [None, None, "It does not answer."]
    assert [run["promoted_at"] for run in found["runs"]] == [None, 1.0]
    text = shown(found)
    assert "2 runs in 3 stores" in text and f"{away.address}: It does not answer." in text
    assert "1 run in need of a person:" in text and f"{first.address}/runs/run: Training diverged" in text


def test_stores_without_a_run_are_an_error_that_names_them(tmp_path: Path) -> None:
    first, second = LocalStore(tmp_path / "first"), LocalStore(tmp_path / "second")
    with pytest.raises(RunMissingError, match=f"no run in the store {first.address} and the store {second.address}"):
        list_runs(first, second)
