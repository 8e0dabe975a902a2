"""A manifest whose newest entries are damaged: what is lost, who has to agree, and who can promote what afterwards."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flows.cli import execute
from storage.errors import ConflictError, CorruptManifestError, FencedError
from storage.objects.local_store import LocalStore
from storage.runs import manifest as manifests
from storage.runs.manifest import Manifest
from storage.runs.retention import RetentionPolicy
from storage.runs.transitions import end_evaluation, promote, take_lease
from tasks.configuration.run import DataConfig, RunConfig
from tasks.promotion.promotion import clear_strays
from tasks.recovery.damaged_head import describe_recovery, plan_recovery, recover
from tasks.recovery.settle import recover_run
from tasks.run_paths import RunPaths
from tests.helpers.holders import dead_process, process_elsewhere
from tests.helpers.runs import BATCH_SIZE, make_checkpoint, make_run, record_of
from training.configuration import TrainConfig

CONFIG = RunConfig(
    run="run", data=DataConfig(text="t", label="l", kind="binary"), train=TrainConfig(batch_size=BATCH_SIZE)
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "LOOK_AGAIN_SECONDS", (0.0,))


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """A run with a segment that died, of fence 2: steps 10, 20 and 30 are promoted, by generations 3, 4 and 5."""
    store = LocalStore(tmp_path / "store")
    manifest = make_run(store)
    manifest.commit("segment began", take_lease(dead_process(), 1))
    for step in (10, 20, 30):
        promote_step(manifest, tmp_path, step, fence=2)
    return store


def promote_step(manifest: Manifest, folder: Path, step: int, fence: int) -> None:
    found = make_checkpoint(manifest.store, folder / "files", step, fence)
    head = manifest.commit(f"promoted step {step}", promote(record_of(found), RetentionPolicy(newest=2)))
    clear_strays(run_paths_of(manifest.store, folder), head)


def run_paths_of(store: object, folder: Path) -> RunPaths:
    assert isinstance(store, LocalStore)
    return RunPaths(store, Manifest(store, "run"), folder / "scratch", folder / "data")


def path_of(store: LocalStore, number: int) -> Path:
    return store.root / f"runs/run/manifest/{number:012d}.json"


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut_off, flip, empty])
def test_a_run_goes_on_from_the_entry_before_a_damaged_one_and_nothing_that_is_there_is_lost(
    store: LocalStore, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    damage(path_of(store, 5))
    spoilt = path_of(store, 5).read_bytes()
    with pytest.raises(CorruptManifestError, match=rf"`holdfast recover {store.address}/runs/run` shows from which"):
        Manifest(store, "run").load_head()
    plan = plan_recovery(store, "run")
    assert plan is not None
    assert (plan.sound.generation, plan.number, plan.waiting, plan.unnamed) == (4, 5, [30], [])
    assert [record.step for record in plan.deleted] == [10]  # as the lost entry said
    head = recover(store, "run", plan)
    assert head.generation == 6 and path_of(store, 5).read_bytes() == spoilt
    assert Manifest(store, "run").load_head() == head
    assert [record.step for record in head.state.kept] == [20]
    state = recover_run(CONFIG, run_paths_of(store, tmp_path))
    assert state.lease is None and state.promoted is not None and state.promoted.step == 30
    assert plan_recovery(store, "run") is None


def test_what_a_lost_entry_had_granted_promotes_nothing_and_its_checkpoints_stay(
    store: LocalStore, tmp_path: Path
) -> None:
    manifest = Manifest(store, "run")
    manifest.commit("ended", end_evaluation(2))
    manifest.commit("segment began", take_lease(process_elsewhere(), 1))  # 7, which may train on while we look
    promote_step(manifest, tmp_path, 40, fence=7)
    for number in (7, 8):
        cut_off(path_of(store, number))
    plan = plan_recovery(store, "run")
    assert plan is not None and (plan.sound.generation, plan.number) == (6, 8)
    assert [step for _, step, _ in plan.unnamed] == [40]
    words = describe_recovery(plan)
    assert "000000000007.json and 000000000008.json" in words and "step 30 of 100" in words
    assert "the checkpoint of step 40, which no sound entry knows of. It is quarantined" in words
    head = recover(store, "run", plan)
    assert [record.step for record in head.state.quarantined] == [40]
    zombie = record_of(make_checkpoint(store, tmp_path / "more", 50, 7))
    with pytest.raises(FencedError):
        manifest.commit("late", promote(zombie, RetentionPolicy(newest=2)))
    fence = manifest.commit("segment began", take_lease(dead_process(), 1)).generation
    assert fence > 8
    with pytest.raises(FencedError):
        manifest.commit("late", promote(zombie, RetentionPolicy(newest=2)))
    clear_strays(run_paths_of(store, tmp_path), manifest.load_head())
    assert any("0040-f" in key for key in store.list_keys("runs/run/checkpoints/"))


def test_who_was_quicker_wins_and_a_sound_manifest_or_none_at_all_is_left_alone(store: LocalStore) -> None:
    assert plan_recovery(store, "run") is None
    cut_off(path_of(store, 5))
    first, second = plan_recovery(store, "run"), plan_recovery(store, "run")
    assert first is not None and second is not None
    recover(store, "run", first)
    before = list(store.list_keys(""))
    with pytest.raises(ConflictError, match="Nothing was changed"):
        recover(store, "run", second)
    for number in range(1, 7):
        cut_off(path_of(store, number))
    with pytest.raises(CorruptManifestError, match="No entry of the manifest of run 'run' can be read, of 6"):
        plan_recovery(store, "run")
    assert list(store.list_keys("")) == before


def test_the_command_shows_what_is_lost_and_does_it_only_where_somebody_agrees(
    store: LocalStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"{store.address}/runs/run"
    assert execute(["recover", address]) == 0
    assert "Nothing to recover" in capsys.readouterr().out
    cut_off(path_of(store, 5))
    before = list(store.list_keys(""))
    assert execute(["status", address]) == 2
    assert execute(["recover", address]) == 2  # nobody is there to ask
    said = capsys.readouterr()
    assert "The newest sound entry is generation 4" in said.out and "--yes" in said.err
    assert list(store.list_keys("")) == before
    assert execute(["recover", address, "--yes"]) == 0
    assert execute(["status", address]) == 0
    assert execute(["recover", address, "--yes"]) == 0
    assert len(list(store.list_keys(""))) == len(before) + 1
