"""Deleting what is no longer kept: recorded first, cut off anywhere, finished by whoever comes next."""

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest

from flows.commands.prune import prune_run
from storage.checkpoints.checkpoints import list_checkpoint_paths, verify_checkpoint
from storage.checkpoints.strays import delete_strays, find_strays
from storage.errors import ConfigurationError, ConflictError, IncompatibleRunError, StoreError
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.retention import RetentionPolicy
from storage.runs.rollbacks.quarantine import quarantine
from storage.runs.run_state import RunState, SegmentRecord
from storage.runs.transitions import end_segment, promote, prune
from tasks.configuration.run import DataConfig, RunConfig
from tasks.promotion.promotion import promote_checkpoint, promote_newest
from tasks.run_paths import RunPaths
from tasks.verification.quarantine import fall_back_to_valid
from tasks.verification.verdicts import VerdictMaker
from tests.helpers.cut_off_stores import ProcessGoneError, StoreCutOff
from tests.helpers.runs import (
    BATCH_SIZE,
    QUICK,
    lease_run,
    make_checkpoint,
    make_run,
    record_of,
)
from training.configuration import CheckpointConfig, TrainConfig

CONFIG = RunConfig(
    run="run",
    data=DataConfig(text="t", label="l", kind="binary"),
    train=TrainConfig(batch_size=BATCH_SIZE),
    checkpoint=CheckpointConfig(keep=2),
)
KEEP_2 = ["checkpoint.keep=2", "divergence.max_rollbacks=0"]  # a run that never goes back needs no older ones


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a run in its second segment.

    Step 10 to 40 are promoted, 20 is quarantined; step 15 was never promoted, step 45 is complete and due, 50 is under
    way, and step 5 is a save of the first segment that was cut off.
    """
    folder = tmp_path_factory.mktemp("template")
    store, files = LocalStore(folder / "store"), folder / "files"
    manifest, keep_all = make_run(store), RetentionPolicy(newest=9)
    first = lease_run(manifest)
    for step in (10, 20):
        manifest.commit("promoted", promote(record_of(make_checkpoint(store, files, step, first)), keep_all))
    manifest.commit("quarantined", quarantine(20, manifest.load_head().state.kept[0].path, "a flipped bit", first))
    make_checkpoint(store, files, 15, first)
    store.delete(f"{make_checkpoint(store, files, 5, first).path}/index.json")
    manifest.commit("ended", end_segment(ended(first)))
    second = lease_run(manifest)
    for step in (30, 40):
        manifest.commit("promoted", promote(record_of(make_checkpoint(store, files, step, second)), keep_all))
    make_checkpoint(store, files, 45, second, validated_step=45)
    store.delete(f"{make_checkpoint(store, files, 50, second).path}/index.json")
    return store.root


@pytest.fixture
def store(template: Path, tmp_path: Path) -> LocalStore:
    return copy_of(template, tmp_path / "store")


def copy_of(template: Path, folder: Path) -> LocalStore:
    return LocalStore(Path(shutil.copytree(template, folder)))


def ended(fence: int) -> SegmentRecord:
    return SegmentRecord(
        fence=fence, outcome="lost", cause="", first_step=0, last_step=0, world_size=1,
        planned_steps=1000, started_at=0.0, seconds=0.0,
        steps_lost=0, phases={},
    )  # fmt: skip


def run_paths_of(store: Any) -> RunPaths:
    return RunPaths(store, Manifest(store, "run"), Path("scratch"), Path("data"))


def state_of(store: Any) -> RunState:
    return Manifest(store, "run").load_head().state


def steps_in(store: LocalStore) -> list[int]:
    return [step for _path, step, _fence in list_checkpoint_paths(store, "run")]


def end_the_segment(store: LocalStore) -> None:
    lease = state_of(store).lease
    assert lease is not None
    Manifest(store, "run").commit("ended", end_segment(ended(lease.fence)))


def due_checkpoint(store: LocalStore) -> str:
    return next(path for path, step, _fence in list_checkpoint_paths(store, "run") if step == 45)


def assert_it_resumes(store: LocalStore, step: int) -> None:
    """All that the manifest names is there, byte for byte, and the resume point is where it was to be."""
    state = fall_back_to_valid(run_paths_of(store), VerdictMaker(QUICK))
    assert state.promoted is not None and state.promoted.step == step and len(state.kept) >= 2
    for record in state.kept:
        verify_checkpoint(store, record.path, record.digest)


def test_a_prune_beside_a_running_segment_leaves_its_saves_and_what_it_began_with(store: LocalStore) -> None:
    result = prune_run(store, "run", KEEP_2)
    assert [entry["step"] for entry in result["kept"]] == [40, 30, 10]
    assert result["kept"][-1]["reason"] == "being read"
    assert [Path(entry["path"]).name[:12].lstrip("0") for entry in result["leftovers"]] == ["5", "15"]
    assert steps_in(store) == [10, 20, 30, 40, 45, 50]


def test_a_prune_of_a_copied_run_deletes_nothing_of_the_original(store: LocalStore) -> None:
    end_the_segment(store)
    shutil.copytree(store.root / "runs/run", store.root / "runs/copy")
    prune_run(store, "run", ["checkpoint.keep=9", "divergence.max_rollbacks=0"])  # keeps what the copy would drop
    before = list(store.list_keys(""))
    with pytest.raises(IncompatibleRunError, match="copied or renamed"):
        prune_run(store, "copy", KEEP_2, quarantined=True)
    assert list(store.list_keys("")) == before


def test_a_prune_of_a_run_at_rest_leaves_what_is_kept_and_what_is_quarantined(store: LocalStore) -> None:
    end_the_segment(store)
    result = prune_run(store, "run", KEEP_2)
    assert [entry["step"] for entry in result["dropped"]] == [10]
    assert result["bytes_freed"] > result["dropped"][0]["num_bytes"] > 0
    assert result["policy"] == {"keep": 2, "keep_best": 1, "keep_every_steps": None, "keep_bytes": None}
    assert steps_in(store) == [20, 30, 40]
    again = prune_run(store, "run", KEEP_2, quarantined=True)
    assert not again["dropped"] and not again["leftovers"] and len(again["quarantined"]) == 1
    assert steps_in(store) == [30, 40]
    assert [record.reason for record in state_of(store).quarantined] == ["a flipped bit"]
    assert_it_resumes(store, 40)


def test_a_run_that_may_have_to_go_back_keeps_a_checkpoint_for_that(store: LocalStore) -> None:
    end_the_segment(store)
    result = prune_run(store, "run", ["checkpoint.keep=2", "divergence.rollback_steps=25"])
    assert [(entry["step"], entry["reason"]) for entry in result["kept"]][-1] == (
        10,
        "to go back to if the loss diverges",
    )


def test_what_the_running_segment_quarantined_keeps_its_files_until_the_segment_is_over(store: LocalStore) -> None:
    fence, path = state_of(store).kept[0].fence, due_checkpoint(store)
    Manifest(store, "run").commit("quarantined", quarantine(45, path, "not finite", fence))
    assert len(prune_run(store, "run", quarantined=True)["quarantined"]) == 1
    assert steps_in(store) == [10, 30, 40, 45, 50]
    end_the_segment(store)
    assert [entry["reason"] for entry in prune_run(store, "run", quarantined=True)["quarantined"]] == [
        "quarantined: not finite"
    ]
    assert steps_in(store) == [10, 30, 40]


def test_a_prune_with_nothing_to_do_and_one_on_trial_change_nothing(store: LocalStore) -> None:
    end_the_segment(store)
    files = {key: store.read(key) for key in store.list_keys("runs/")}
    assert prune_run(store, "run", KEEP_2, dry_run=True, quarantined=True)["dropped"]
    assert {key: store.read(key) for key in store.list_keys("runs/")} == files
    prune_run(store, "run", KEEP_2)
    generation = Manifest(store, "run").load_head().generation
    prune_run(store, "run", KEEP_2)
    assert Manifest(store, "run").load_head().generation == generation


def test_a_policy_that_would_take_the_fallback_is_refused(store: LocalStore) -> None:
    with pytest.raises(ConfigurationError, match="keep: must be at least 2"):
        prune_run(store, "run", ["checkpoint.keep=1"])


def test_a_prune_that_was_decided_before_the_run_went_on_takes_nothing_that_is_needed_now(store: LocalStore) -> None:
    for step in (40, 30, 10):
        path = next(record.path for record in state_of(store).kept if record.step == step)
        with pytest.raises(ConflictError, match="was continued by another process"):
            Manifest(store, "run").commit("pruned", prune({path}, ()))


def test_a_save_of_the_same_step_by_a_later_segment_is_no_stray(store: LocalStore, tmp_path: Path) -> None:
    end_the_segment(store)
    fence = lease_run(Manifest(store, "run"))
    again = make_checkpoint(store, tmp_path, 40, fence, validated_step=40)
    passed = make_checkpoint(store, tmp_path, 39, fence)
    strays = find_strays(store, Manifest(store, "run").load_head())
    assert passed.path in strays and again.path not in strays


def test_whoever_looked_at_the_manifest_long_ago_takes_nothing_of_a_segment_that_began_since(
    store: LocalStore, tmp_path: Path
) -> None:
    manifest = Manifest(store, "run")
    in_training = manifest.load_head()
    end_the_segment(store)
    at_rest = manifest.load_head()
    later = make_checkpoint(store, tmp_path, 60, lease_run(manifest))
    for head in (in_training, at_rest):
        assert later.path not in find_strays(store, head)


def test_promotion_notes_the_metric_of_a_validation_at_that_very_step(store: LocalStore, tmp_path: Path) -> None:
    fence = state_of(store).kept[0].fence
    older = make_checkpoint(store, tmp_path, 60, fence, validated_step=50)
    for path in (due_checkpoint(store), older.path):
        assert promote_checkpoint(CONFIG, run_paths_of(store), path) == state_of(store).kept[0]
    assert [record.metric for record in state_of(store).kept[:2]] == [None, 0.045]


def test_a_promotion_applies_the_policy_and_a_store_that_cannot_delete_does_not_stop_training(
    store: LocalStore, tmp_path: Path
) -> None:
    cut_off = StoreCutOff(store, at=3, error=StoreError("permission denied"), only="delete")
    promote_checkpoint(CONFIG, run_paths_of(cut_off), due_checkpoint(store))
    assert cut_off.num_calls == 3
    assert [record.step for record in state_of(store).kept] == [45, 40, 10]
    assert 30 in steps_in(store)
    after = make_checkpoint(store, tmp_path, 60, state_of(store).kept[0].fence)
    promote_checkpoint(CONFIG, run_paths_of(store), after.path)
    assert steps_in(store) == [10, 20, 45, 60]


def test_a_prune_cut_off_at_any_operation_leaves_a_run_that_resumes_and_the_next_one_finishes(
    template: Path, tmp_path: Path
) -> None:
    steps_left = set[tuple[int, ...]]()
    for at in itertools.count(1):
        store = copy_of(template, tmp_path / f"store-{at}")
        end_the_segment(store)
        cut_off = StoreCutOff(store, at, ProcessGoneError())
        try:
            prune_run(cut_off, "run", KEEP_2, quarantined=True)
        except ProcessGoneError:
            steps_left.add(tuple(steps_in(store)))
            assert_it_resumes(store, 40)
            prune_run(store, "run", KEEP_2, quarantined=True)
            assert_it_resumes(store, 40)
            assert steps_in(store) == [30, 40]
        else:
            assert cut_off.num_calls == at - 1
            break
    assert len(steps_left) == 6  # nothing gone, then one folder after the other; with the sixth the prune is done


def test_a_promotion_cut_off_at_any_operation_is_made_up_for_and_the_next_segment_deletes_the_rest(
    template: Path, tmp_path: Path
) -> None:
    kept_when_cut_off = set[tuple[int, ...]]()
    for at in itertools.count(1):
        store = copy_of(template, tmp_path / f"store-{at}")
        fence = state_of(store).kept[0].fence
        cut_off = StoreCutOff(store, at, ProcessGoneError())
        try:
            promote_checkpoint(CONFIG, run_paths_of(cut_off), due_checkpoint(store))
        except ProcessGoneError:
            kept_when_cut_off.add(tuple(record.step for record in state_of(store).kept))
            promote_newest(CONFIG, run_paths_of(store), fence, VerdictMaker(QUICK))
            end_the_segment(store)
            assert_it_resumes(store, 45)
            lease_run(Manifest(store, "run"))
            delete_strays(store, Manifest(store, "run").load_head())
            assert steps_in(store) == [10, 20, 40, 45]
        else:
            assert cut_off.num_calls == at - 1
            break
    assert kept_when_cut_off == {(40, 30, 10), (45, 40, 10)}
