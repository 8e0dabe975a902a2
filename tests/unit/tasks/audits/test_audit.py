"""The audit passes a ledger that the pure functions ask for, and names step and samples in every forged one.

Forged ledgers are sealed again: hashes, chain and hashes of ids are right, so that their content alone betrays them.
"""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
import pytest

from storage.checkpoints.checkpoints import delete_checkpoint
from storage.datasets import DatasetManifest, dataset_key
from storage.errors import CorruptObjectError
from storage.objects.digests import sha256_of_file
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Generation, Manifest
from storage.runs.rollbacks.quarantine import quarantine
from tasks.audits import comparison as audit_comparison
from tasks.audits.verdict import audit_run
from tests.helpers.datasets import GROUP_ROWS, SHARD_ROWS, publish_small_dataset
from tests.helpers.forged_ledgers import FORGERIES, Forged
from tests.helpers.ledgers import BATCH_SIZE, MICROBATCHES, STEPS, LedgerRun, row_id
from training.data.order import SampleOrder

NUM_ROWS = 300
RUN_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalStore, DatasetManifest]:
    folder = tmp_path_factory.mktemp("store")
    store = LocalStore(folder / "store")
    return store, publish_small_dataset(store, folder / "rows", NUM_ROWS)


@pytest.fixture
def run(dataset: tuple[LocalStore, DatasetManifest], tmp_path: Path) -> LedgerRun:
    return LedgerRun(dataset[0], tmp_path, dataset[1], name=f"run-{next(RUN_NUMBERS)}")


def audited(run: LedgerRun) -> dict[str, Any]:
    """The audit of a run that is written now."""
    run.write()
    return audited_again(run)


def audited_again(run: LedgerRun) -> dict[str, Any]:
    """The audit of a run as it was written; also that it is JSON, and that `ok` says what the list says."""
    result = audit_run(run.store, run.name)
    assert json.loads(json.dumps(result)) == result
    assert result["ok"] == (result["violations"] == []) == (result["num_violations"] == 0)
    return result


def named(violation: dict[str, Any]) -> Forged:
    for sample in violation["samples"]:
        assert sample["id"] == (row_id(sample["row"]) if sample["row"] < NUM_ROWS else None)
    return violation["kind"], set(violation["steps"]), {sample["row"] for sample in violation["samples"]}


def test_a_ledger_as_the_pure_functions_ask_for_it_passes(run: LedgerRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many steps and epochs are looked at in one piece."""
    result = audited(run)
    for span_samples in (1, 100):
        monkeypatch.setattr(audit_comparison, "SPAN_SAMPLES", span_samples)
        assert audited_again(run) == result
    fences = [segment["fence"] for segment in result["segments"]]
    assert result == {
        "run": run.name,
        "address": f"{run.store.address}/runs/{run.name}",
        "ok": True,
        "steps": STEPS,
        "samples": STEPS * BATCH_SIZE,
        "microbatches": STEPS * MICROBATCHES,
        "parts": 6,
        "epochs": [
            {"epoch": 0, "samples": 300, "complete": True},
            {"epoch": 1, "samples": 300, "complete": True},
            {"epoch": 2, "samples": 300, "complete": True},
            {"epoch": 3, "samples": 60, "complete": False},
        ],
        "segments": [
            {"fence": fences[0], "outcome": "lost", "world_size": 2, "counted": [0, 14], "void": [14, 17]},
            {"fence": fences[1], "outcome": "preempted", "world_size": 3, "counted": [14, 27], "void": None},
            {"fence": fences[2], "outcome": "completed", "world_size": 1, "counted": [27, 40], "void": None},
        ],
        "skipped": [],
        "violations": [],
        "num_violations": 0,
    }


@pytest.mark.parametrize("num_rows", [10, 24, 300 - 12])
def test_it_passes_where_a_batch_holds_several_epochs_or_ends_with_one(tmp_path: Path, num_rows: int) -> None:
    store = LocalStore(tmp_path / "store")
    run = LedgerRun(store, tmp_path, publish_small_dataset(store, tmp_path / "rows", num_rows))
    result = audited(run)
    assert result["ok"] and result["epochs"][1] == {"epoch": 1, "samples": num_rows, "complete": True}
    assert sum(epoch["samples"] for epoch in result["epochs"]) == STEPS * BATCH_SIZE


def test_a_sample_that_a_batch_uses_for_one_epoch_and_not_for_the_next_is_missed_in_the_next(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    run = LedgerRun(store, tmp_path, publish_small_dataset(store, tmp_path / "rows", 10))
    # Step 5 has samples 120 to 143: all of the epochs 12 and 13, and four of epoch 14.
    lost, microbatch = next(
        (microbatch["rows"][0], microbatch["rows"]) for microbatch in run.microbatches if microbatch["step"] == 5
    )
    epochs = run.rows_of(5).count(lost)
    microbatch.pop(0)
    (violation,) = audited(run)["violations"]
    assert named(violation) == ("skipped", {5}, {lost})
    assert violation["message"].endswith(f"(id 'train-{lost}') is due here and was not used in epoch {11 + epochs}.")
    assert violation["message"].startswith(f"Step 5: row {lost} ")
    assert violation["message"].count("row ") == 1


@pytest.mark.parametrize("forge", FORGERIES)
def test_a_forged_ledger_fails_at_its_step_with_its_samples(
    run: LedgerRun, forge: Callable[[LedgerRun], list[Forged]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the steps that have to do with it are not looked at in one piece."""
    expected = forge(run)
    result = audited(run)
    monkeypatch.setattr(audit_comparison, "SPAN_SAMPLES", 100)
    assert audited_again(run) == result
    assert result["num_violations"] == len(expected)
    for violation, (kind, steps, rows) in zip(result["violations"], expected, strict=True):
        found_kind, found_steps, found_rows = named(violation)
        assert (found_kind, found_steps) == (kind, steps)
        # A whole batch is more than is named one by one.
        assert found_rows == rows or (found_rows < rows and len(found_rows) == 20)


@pytest.mark.parametrize("what", ["repeat", "swap", "foreign"])
def test_what_concerns_two_windows_of_the_order_is_found(
    run: LedgerRun, monkeypatch: pytest.MonkeyPatch, what: Literal["repeat", "swap", "foreign"]
) -> None:
    """The samples stand in two windows, row groups and shards, and their steps in two parts of the ledger."""
    one, other = next(
        (one, other)
        for one, other in itertools.product(run.rows(1, 0), run.rows(11, 2))
        if one // GROUP_ROWS != other // GROUP_ROWS and one // SHARD_ROWS != other // SHARD_ROWS
    )
    order = SampleOrder(NUM_ROWS, GROUP_ROWS, run.seed)
    assert [window.number for window in (row_range.window for row_range in order.row_ranges(24, 1))] == [0]
    assert {row_range.window.number for row_range in order.row_ranges(11 * 24, 24)} == {1}
    there, here = run.rows(11, 2), run.rows(1, 0)
    there[there.index(other)] = NUM_ROWS if what == "foreign" else one
    if what == "swap":
        here[here.index(one)] = other
    expected = {
        "repeat": [("repeated", {1, 11}, {one, other})],
        "swap": [("moved", {1, 11}, {one, other})] * 2,
        "foreign": [("foreign", {11}, {NUM_ROWS, other})],
    }
    result = audited(run)
    assert [named(violation) for violation in result["violations"]] == expected[what]
    monkeypatch.setattr(audit_comparison, "SPAN_SAMPLES", 100)
    assert audited_again(run) == result


def test_the_order_of_another_seed_fails_at_every_step(run: LedgerRun) -> None:
    run.microbatches = LedgerRun(run.store, run.folder, run.dataset, name="other", seed=12).microbatches
    result = audited(run)
    assert result["num_violations"] == STEPS
    assert len(result["violations"]) == 20
    assert all(violation["message"].startswith(f"Step {step}: ") for step, violation in enumerate(result["violations"]))


def test_samples_read_under_other_ids_than_the_data_set_has_fail(run: LedgerRun) -> None:
    """The rows are right, but the loader read its neighbour once."""
    wrong = run.rows(22, 3)[0]
    run.id_of = lambda row: row_id(row + (row == wrong))
    steps = [microbatch["step"] for microbatch in run.microbatches if wrong in microbatch["rows"]]
    result = audited(run)
    assert [named(violation)[:2] for violation in result["violations"]] == [("ids", {step}) for step in sorted(steps)]
    assert (22, set(run.rows(22, 3))) in [
        (min(violation["steps"]), named(violation)[2]) for violation in result["violations"]
    ]


@pytest.mark.parametrize("void_part", ["beside", "instead"])
def test_a_stale_segment_that_counts_fails_though_its_samples_are_right(
    run: LedgerRun, void_part: Literal["beside", "instead"]
) -> None:
    run.void_part = void_part
    result = audited(run)
    (violation,) = result["violations"]
    kind, steps, rows = named(violation)
    assert (kind, steps) == ("stale", {14, 15, 16}) and rows <= {*run.rows_of(14), *run.rows_of(15), *run.rows_of(16)}
    assert "was rolled back to step 14, and segment 6 continued from there" in violation["message"]
    assert result["segments"][0]["counted"] == [0, 17]


def test_a_part_of_a_fence_that_nobody_had_fails(run: LedgerRun) -> None:
    run.write()
    run.manifest.commit("forgot", lambda state, _: state.model_copy(update={"segments": state.segments[1:]}))
    (violation, *_) = audit_run(run.store, run.name)["violations"]
    assert violation["kind"] == "stale" and violation["steps"] == [*range(7)]
    assert "the manifest knows no such segment" in violation["message"]


def test_the_ledger_of_another_data_set_fails(run: LedgerRun) -> None:
    run.header_changes[14] = {"dataset_digest": "e" * 64}
    (violation,) = audited(run)["violations"]
    assert (violation["kind"], violation["steps"]) == ("dataset", [*range(14, 20)])


@pytest.mark.parametrize(("field", "value"), [("run", "another"), ("fence", 77), ("first_step", 15)])
def test_a_part_that_says_something_else_about_itself_than_the_chain_fails(
    run: LedgerRun, field: str, value: Any
) -> None:
    (run.header_changes if field == "run" else run.part_changes)[14] = {field: value}
    (violation,) = (one for one in audited(run)["violations"] if one["kind"] == "header")
    assert violation["steps"] == [*range(15 if field == "first_step" else 14, 20)]
    assert f"{field} is " in violation["message"]


def test_steps_between_two_parts_and_beyond_the_last_one_fail(run: LedgerRun) -> None:
    run.header_changes[14] = {"end_step": 18}
    violations = audited(run)["violations"]
    assert [violation["kind"] for violation in violations] == ["steps_missing", "strays"]
    assert [violation["steps"] for violation in violations] == [[18, 19], [18, 19]]
    assert named(violations[0])[2] <= {*run.rows_of(18), *run.rows_of(19)}


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_a_part_that_was_changed_or_deleted_is_named_and_what_it_vouched_for(run: LedgerRun, damage: str) -> None:
    run.write()
    path = run.store.fetch(run.parts[2].key)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    if damage == "flipped":
        path.write_bytes(data)
    result = audit_run(run.store, run.name)
    (violation,) = result["violations"]
    assert violation["kind"] == ("part_changed" if damage == "flipped" else "part_missing")
    assert violation["steps"] == [*range(14, 20)] and named(violation)[2] <= set(run.rows_of(14))
    assert "Without it the parts of steps 0 to 13 cannot be checked." in violation["message"]
    assert (result["steps"], result["parts"]) == (20, 3)  # what came after it was looked at


def test_an_order_that_uses_a_sample_twice_fails_even_where_the_ledger_follows_it(
    run: LedgerRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples are counted, whatever the pure functions say."""
    rows = SampleOrder.rows
    monkeypatch.setattr(SampleOrder, "rows", lambda *arguments: np.where((r := rows(*arguments)) == 7, 8, r))
    run.microbatches = run.due_microbatches()
    result = audited(run)
    assert [epoch["complete"] for epoch in result["epochs"]] == [False] * 4
    whole = [named(violation) for violation in result["violations"][:6]]
    assert whole == [("repeated", set(), {8}), ("skipped", set(), {7})] * 3
    for span_samples in (1, 100):
        monkeypatch.setattr(audit_comparison, "SPAN_SAMPLES", span_samples)
        assert audited_again(run) == result


def test_an_audit_of_a_run_in_training_looks_at_what_is_promoted(run: LedgerRun) -> None:
    manifest = run.created().manifest
    assert audit_run(run.store, run.name) | {"segments": []} == {
        **dict.fromkeys(("steps", "samples", "microbatches", "parts", "num_violations"), 0),
        **{key: [] for key in ("epochs", "segments", "skipped", "violations")},
        **{"run": run.name, "address": f"{run.store.address}/runs/{run.name}", "ok": True},
    }
    fence = run.begin(ranks=2)
    run.save(7, fence, ranks=2)
    run.put_part(7, 14, fence, ranks=2)  # its checkpoint is under way
    result = audit_run(run.store, run.name)
    assert (result["ok"], result["steps"]) == (True, 7) and manifest.load_head().state.lease is not None
    assert result["segments"] == [
        {"fence": fence, "outcome": "running", "world_size": 2, "counted": [0, 7], "void": None}
    ]


def test_steps_of_a_checkpoint_that_was_quarantined_are_void_and_may_be_trained_again(run: LedgerRun) -> None:
    run.write()
    newest = run.manifest.load_head().state.kept[0]
    run.manifest.commit("quarantined", quarantine(40, newest.path, "a flipped bit", None))
    result = audit_run(run.store, run.name)
    assert (result["ok"], result["steps"]) == (True, 34)
    assert (result["segments"][-1]["counted"], result["segments"][-1]["void"]) == ([27, 34], [34, 40])
    run.parts.pop()
    fence = run.begin(ranks=4)
    run.save(40, fence, ranks=4)
    result = audit_run(run.store, run.name)
    assert (result["ok"], result["steps"]) == (True, 40)
    assert [segment["counted"] for segment in result["segments"][-2:]] == [[27, 34], [34, 40]]


def test_a_checkpoint_that_vouches_for_no_ledger_fails(run: LedgerRun) -> None:
    run.write()
    promoted = run.manifest.load_head().state.promoted
    assert promoted is not None
    run.store.delete(f"{promoted.path}/index.json")
    (violation,) = audit_run(run.store, run.name)["violations"]
    assert (violation["kind"], violation["steps"]) == ("checkpoint", [40])
    run.promote_at_once(run.put_checkpoint(41, 99, None))
    (violation,) = audit_run(run.store, run.name)["violations"]
    assert (violation["kind"], violation["steps"]) == ("no_ledger", [])


@pytest.mark.parametrize(("step", "last_part", "kind"), [(40, -2, "steps_missing"), (34, -1, "stale")])
def test_a_checkpoint_that_names_the_ledger_of_another_step_fails(
    run: LedgerRun, step: int, last_part: int, kind: str
) -> None:
    run.write()
    run.promote_at_once(run.put_checkpoint(step, 99, run.parts[last_part]))
    (violation,) = audit_run(run.store, run.name)["violations"]
    assert (violation["kind"], violation["steps"]) == (kind, [*range(34, 40)])


def test_a_part_with_other_columns_fails_without_a_traceback(run: LedgerRun, tmp_path: Path) -> None:
    run.write()
    last = run.parts[-1]
    path = tmp_path / "other.parquet"
    table = pq.read_table(run.store.fetch(last.key))
    pq.write_table(table.drop(["rows"]).replace_schema_metadata(table.schema.metadata), path)
    run.store.delete(last.key)
    run.store.put_file(path, last.key)
    forged = last.model_copy(update={"sha256": sha256_of_file(path), "num_bytes": path.stat().st_size})
    run.promote_at_once(run.put_checkpoint(40, 99, forged))
    (violation,) = audit_run(run.store, run.name)["violations"]
    assert (violation["kind"], violation["steps"]) == ("header", [*range(34, 40)])


def test_a_checkpoint_that_the_running_segment_drops_meanwhile_is_no_violation(
    run: LedgerRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.created()
    fence = run.begin(ranks=1)
    run.save(7, fence, ranks=1)
    load_head = Manifest.load_head

    def load_and_go_on(manifest: Manifest) -> Generation:
        """Between the audit's reading of the manifest and of the checkpoint, training goes on."""
        head = load_head(manifest)
        monkeypatch.undo()
        assert head.state.promoted is not None
        run.save(14, fence, ranks=1)
        delete_checkpoint(run.store, head.state.promoted.path)
        return head

    monkeypatch.setattr(Manifest, "load_head", load_and_go_on)
    result = audit_run(run.store, run.name)
    assert (result["ok"], result["steps"]) == (True, 14)


def test_a_shard_that_was_changed_is_an_error_of_its_own(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    run = LedgerRun(store, tmp_path, publish_small_dataset(store, tmp_path / "rows", 100)).write()
    path = store.fetch(dataset_key(run.dataset.digest, "train-00001.parquet"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(CorruptObjectError, match=r"train-00001\.parquet cannot be read: .*Restore it from a backup"):
        audit_run(store, run.name)
