"""The audit accepts what recorded rollbacks left out, names it, and accepts nothing else that is missing or not due."""

import io
import itertools
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flows.commands.audit import render_audit
from storage.datasets import DatasetManifest
from storage.objects.local_store import LocalStore
from storage.runs.run_state import RunState
from tasks.audits import comparison as audit_comparison
from tasks.audits.verdict import audit_run
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.ledgers import BATCH_SIZE, DIVERGED_STEP, ROLLBACK_STEPS, STEPS, LedgerRun

NUM_ROWS = 300
RESUME_STEP = DIVERGED_STEP - ROLLBACK_STEPS
SKIPPED = ROLLBACK_STEPS * BATCH_SIZE
NAMES = (f"run-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalStore, DatasetManifest]:
    folder = tmp_path_factory.mktemp("store")
    store = LocalStore(folder / "store")
    return store, publish_small_dataset(store, folder / "rows", NUM_ROWS)


def ledger(dataset: tuple[LocalStore, DatasetManifest], folder: Path, diverges: bool = True) -> LedgerRun:
    return LedgerRun(dataset[0], folder, dataset[1], name=next(NAMES), diverges=diverges)


def kinds(result: dict[str, Any]) -> set[str]:
    assert result["ok"] == (not result["violations"])
    return {violation["kind"] for violation in result["violations"]}


def forge(run: LedgerRun, **changes: Any) -> None:
    """Change what the manifest says of the run's first rollback; None takes it away."""

    def change(state: RunState, _number: int) -> RunState:
        rollbacks = [state.rollbacks[0].model_copy(update=changes)] if changes else []
        return state.model_copy(update={"rollbacks": rollbacks})

    run.manifest.commit("forged", change)


def test_what_a_recorded_rollback_left_out_is_accepted_and_named(
    dataset: tuple[LocalStore, DatasetManifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many steps and epochs are looked at in one piece."""
    run = ledger(dataset, tmp_path).write()
    result = audit_run(run.store, run.name)
    for span_samples in (1, 100):
        monkeypatch.setattr(audit_comparison, "SPAN_SAMPLES", span_samples)
        assert audit_run(run.store, run.name) == result
    assert result["ok"], result["violations"]
    assert (result["steps"], result["samples"]) == (STEPS, STEPS * BATCH_SIZE)
    fence = result["segments"][1]["fence"]
    assert result["skipped"] == [
        {
            "fence": fence,
            "first_position": RESUME_STEP * BATCH_SIZE,
            "end_position": DIVERGED_STEP * BATCH_SIZE,
            "samples": SKIPPED,
            "before_step": RESUME_STEP,
            "diverged_step": DIVERGED_STEP,
            "cause": "",
        }
    ]
    # Positions 576 to 719 are left out: the last 24 samples of the second epoch and the first 120 of the third.
    assert result["epochs"] == [
        {"epoch": 0, "samples": 300, "complete": True},
        {"epoch": 1, "samples": 276, "complete": True},
        {"epoch": 2, "samples": 180, "complete": True},
        {"epoch": 3, "samples": 204, "complete": False},
    ]
    counted = {segment["outcome"]: (segment["counted"], segment["void"]) for segment in result["segments"]}
    assert counted["diverged"] == ([14, 20], [20, DIVERGED_STEP])
    assert counted["completed"] == ([20, STEPS], None)


def test_it_is_told_to_a_person(dataset: tuple[LocalStore, DatasetManifest], tmp_path: Path) -> None:
    run = ledger(dataset, tmp_path).write()
    written = io.StringIO()
    Console(width=200, file=written).print(render_audit(audit_run(run.store, run.name)))
    text = written.getvalue()
    assert f"in the order that the seed gives, except the {SKIPPED} that rollbacks left out." in text
    assert "576 to 719" in text


def test_a_gap_that_the_manifest_does_not_have_is_named(
    dataset: tuple[LocalStore, DatasetManifest], tmp_path: Path
) -> None:
    run = ledger(dataset, tmp_path, diverges=False)
    run.microbatches = run.due_microbatches(is_rolled_back=True)
    result = audit_run(run.write().store, run.name)
    assert result["num_violations"] == STEPS - RESUME_STEP
    assert RESUME_STEP in result["violations"][0]["steps"]
    assert kinds(result) & {"skipped", "moved"}


def test_a_recorded_gap_whose_samples_were_used_is_named(
    dataset: tuple[LocalStore, DatasetManifest], tmp_path: Path
) -> None:
    run = ledger(dataset, tmp_path)
    run.microbatches = run.due_microbatches(is_rolled_back=False)
    result = audit_run(run.write().store, run.name)
    assert result["num_violations"] == STEPS - RESUME_STEP
    assert {step for violation in result["violations"] for step in violation["steps"]} >= {RESUME_STEP, STEPS - 1}


def test_one_step_that_uses_what_was_left_out_is_named_with_its_samples(
    dataset: tuple[LocalStore, DatasetManifest], tmp_path: Path
) -> None:
    run = ledger(dataset, tmp_path)
    poisoned = [microbatch for microbatch in run.due_microbatches() if microbatch["step"] == RESUME_STEP]
    rows = {row for microbatch in poisoned for row in microbatch["rows"]}
    run.microbatches = [microbatch for microbatch in run.microbatches if microbatch["step"] != RESUME_STEP] + poisoned
    result = audit_run(run.write().store, run.name)
    (violation,) = result["violations"]
    assert violation["steps"][0] == RESUME_STEP
    assert {sample["row"] for sample in violation["samples"]} & rows


def test_a_part_that_says_something_else_about_the_gap_than_the_manifest_is_named(
    dataset: tuple[LocalStore, DatasetManifest], tmp_path: Path
) -> None:
    run = ledger(dataset, tmp_path)
    run.header_changes = {20: {"skipped": []}}
    assert kinds(audit_run(run.write().store, run.name)) == {"header"}
    other = ledger(dataset, tmp_path, diverges=False)
    other.header_changes = {20: {"skipped": [(480, 504)]}}
    result = audit_run(other.write().store, other.name)
    assert kinds(result) == {"header"}
    assert "skipped is [(480, 504)], expected []" in result["violations"][0]["message"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fence": 99}, "has no reason: the manifest knows no divergence of that segment"),
        ({"diverged_step": DIVERGED_STEP - 1}, "names step 29; what diverged is step 30"),
        ({"end_position": 744}, "leaves out positions 576 to 743; what led to the divergence is 576 to 719"),
    ],
)
def test_a_rollback_without_a_reason_or_with_another_range_is_named(
    dataset: tuple[LocalStore, DatasetManifest], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    run = ledger(dataset, tmp_path).write()
    forge(run, **changes)
    result = audit_run(run.store, run.name)
    assert "rollback" in kinds(result)
    assert any(message in violation["message"] for violation in result["violations"])


def test_a_rollback_that_was_struck_from_the_manifest_leaves_a_gap_without_a_reason(
    dataset: tuple[LocalStore, DatasetManifest], tmp_path: Path
) -> None:
    run = ledger(dataset, tmp_path).write()
    forge(run)
    assert not audit_run(run.store, run.name)["ok"]


def test_a_gap_longer_than_an_epoch_is_accepted(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    run = LedgerRun(store, tmp_path, publish_small_dataset(store, tmp_path / "rows", 40), diverges=True)
    result = audit_run(run.write().store, run.name)
    assert result["ok"], result["violations"]
    # Positions 576 to 719 are the end of epoch 14, three whole epochs, and nothing of epoch 18.
    assert [epoch["epoch"] for epoch in result["epochs"]][13:17] == [13, 14, 18, 19]
    assert all(epoch["complete"] for epoch in result["epochs"][:-1])
