"""What a checkpoint is called that cannot be read as it was written, and what follows: never step 0 by itself."""

import errno
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from storage.checkpoints.checkpoints import STATE_NAME, verify_checkpoint
from storage.errors import CheckpointUnusableError, CorruptObjectError, NoCheckpointError, ObjectUnreadableError
from storage.objects.local_store import LocalStore
from storage.objects.store import Store
from storage.runs.manifest import Manifest
from storage.runs.retention import RetentionPolicy
from storage.runs.rollbacks.quarantine import begin_anew
from storage.runs.run_records import FrozenFile
from storage.runs.run_state import CheckpointRecord, RunState
from storage.runs.transitions import promote
from tasks.configuration.run import DataConfig, RetryConfig, RunConfig
from tasks.promotion.promotion import look_again, promote_newest
from tasks.recovery.settle import recover_run
from tasks.run_paths import RunPaths
from tasks.verification.quarantine import fall_back_to_valid, require_checkpoint
from tasks.verification.verdicts import VerdictMaker
from tests.helpers.failing_stores import FailingStore
from tests.helpers.runs import BATCH_SIZE, QUICK, lease_run, make_checkpoint, make_run, put_frozen, record_of
from training.configuration import TrainConfig

# Long beside a look, short beside a test.
PATIENT = RetryConfig(store_seconds=30, reread_seconds=0.05)
CONFIG = RunConfig(
    run="run",
    data=DataConfig(text="t", label="l", kind="binary"),
    train=TrainConfig(batch_size=BATCH_SIZE),
    retry=QUICK,
)


def run_paths_of(store: Store, folder: Path) -> RunPaths:
    return RunPaths(store, Manifest(store, "run"), folder / "scratch", folder / "data")


def keep_checkpoints(
    store: Store, folder: Path, *steps: int, frozen: Sequence[FrozenFile] = ()
) -> list[CheckpointRecord]:
    """A run at rest that keeps these, the newest first."""
    manifest = make_run(store)
    fence = lease_run(manifest)
    for step in steps:
        found = make_checkpoint(store, folder / "files", step, fence, frozen=frozen)
        manifest.commit("promoted", promote(record_of(found), RetentionPolicy(newest=len(steps))))
    manifest.commit("ended", lambda state, _: state.model_copy(update={"lease": None}))
    return manifest.load_head().state.kept


@pytest.fixture
def kept(tmp_path: Path) -> list[CheckpointRecord]:
    return keep_checkpoints(LocalStore(tmp_path / "store"), tmp_path, 10, 20, 30)


def state_of(tmp_path: Path) -> RunState:
    return Manifest(LocalStore(tmp_path / "store"), "run").load_head().state


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOENT])
@pytest.mark.usefixtures("kept")
def test_a_moment_without_checkpoints_takes_none_out_of_use(number: int, tmp_path: Path) -> None:
    run_paths = run_paths_of(FailingStore(tmp_path / "store", number, failures=2), tmp_path)
    before = state_of(tmp_path)
    assert fall_back_to_valid(run_paths, VerdictMaker(PATIENT)) == before == state_of(tmp_path)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOENT])
@pytest.mark.usefixtures("kept")
def test_where_no_checkpoint_can_be_read_there_is_no_verdict_and_the_next_start_looks_again(
    number: int, tmp_path: Path
) -> None:
    run_paths = run_paths_of(FailingStore(tmp_path / "store", number, failures=None), tmp_path)
    before = state_of(tmp_path)
    with pytest.raises(ObjectUnreadableError):
        fall_back_to_valid(run_paths, VerdictMaker(QUICK))
    assert state_of(tmp_path) == before


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOENT])
def test_one_that_stays_unreadable_is_passed_over_and_used_again_when_it_can_be_read(
    kept: list[CheckpointRecord], number: int, tmp_path: Path
) -> None:
    run_paths = run_paths_of(FailingStore(tmp_path / "store", number, failures=None, path=kept[0].path), tmp_path)
    state = fall_back_to_valid(run_paths, VerdictMaker(QUICK))
    assert [record.step for record in state.kept] == [20, 10]
    assert [(record.step, record.verdict) for record in state.quarantined] == [(30, "unreadable")]
    assert look_again(CONFIG, run_paths) == state  # not yet
    fence = lease_run(run_paths.manifest)  # steps below it are promoted meanwhile
    make_checkpoint(run_paths.store, tmp_path / "files", 25, fence)
    record = promote_newest(CONFIG, run_paths, fence, VerdictMaker(QUICK))
    assert record is not None and record.step == 25
    run_paths.manifest.commit("ended", lambda state, _: state.model_copy(update={"lease": None}))
    again = look_again(CONFIG, run_paths_of(LocalStore(tmp_path / "store"), tmp_path))
    assert again.promoted is not None and again.promoted.step == 30
    assert [record.step for record in again.kept] == [30, 25, 20, 10] and again.quarantined == []


@pytest.mark.parametrize("verdict", ["damaged", "unreadable"])
def test_without_the_weights_that_all_checkpoints_need_none_is_used_until_they_are_restored(
    verdict: str, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path / "store")
    frozen = put_frozen(store, tmp_path / "start")
    keep_checkpoints(store, tmp_path, 10, 20, frozen=[frozen])
    run_paths, path = run_paths_of(store, tmp_path), store.fetch(frozen.key)
    content = path.read_bytes()
    flip(path) if verdict == "damaged" else path.unlink()
    state = fall_back_to_valid(run_paths, VerdictMaker(QUICK))
    assert [(record.step, record.verdict) for record in state.quarantined] == [(20, verdict), (10, verdict)]
    with pytest.raises(NoCheckpointError, match=frozen.key):
        require_checkpoint(state)
    path.write_bytes(content)
    again = look_again(CONFIG, run_paths)
    assert again.promoted is not None and again.promoted.step == 20 and again.quarantined[0].step == 10


def test_what_differs_once_is_sound_and_what_differs_twice_is_damaged(
    kept: list[CheckpointRecord], tmp_path: Path
) -> None:
    store = LocalStore(tmp_path / "store")
    run_paths, verdicts = run_paths_of(store, tmp_path), VerdictMaker(PATIENT)
    path, looks = store.root / kept[0].path / STATE_NAME, iter(["wrong"])
    verify = partial(verify_checkpoint, store, kept[0].path, kept[0].digest)

    def misread_once() -> object:
        for _ in looks:
            raise CorruptObjectError("read wrong")
        return verify()

    assert verdicts.check(run_paths, kept[0].path, misread_once)
    flip(path)
    with pytest.raises(CorruptObjectError):
        verdicts.look(kept[0].path, verify)  # one look alone is no verdict
    with pytest.raises(CheckpointUnusableError) as raised:
        verdicts.check(run_paths, kept[0].path, verify)
    assert raised.value.verdict == "damaged"
    flip(path)
    assert fall_back_to_valid(run_paths, VerdictMaker(PATIENT)).quarantined == []


def test_a_run_that_lost_all_ends_with_words_until_one_is_back_or_a_person_lets_it_begin_anew(
    kept: list[CheckpointRecord], tmp_path: Path
) -> None:
    store = LocalStore(tmp_path / "store")
    run_paths = run_paths_of(store, tmp_path)
    for record in kept:
        flip(store.root / record.path / STATE_NAME)
    fall_back_to_valid(run_paths, VerdictMaker(QUICK))
    for _ in range(2):
        with pytest.raises(NoCheckpointError, match=r"does not begin anew.*recover RUN --from-start"):
            recover_run(CONFIG, run_paths)
    whole = shutil.copytree(tmp_path / "store", tmp_path / "whole")
    flip(whole / kept[1].path / STATE_NAME)  # from a backup
    state = recover_run(CONFIG, run_paths_of(LocalStore(whole), tmp_path))
    assert state.promoted is not None and state.promoted.step == 20
    run_paths.manifest.commit("begins anew", begin_anew("asked for"))
    state = recover_run(CONFIG, run_paths)
    assert (
        state.promoted is None
        and len(state.quarantined) == 3
        and all(record.is_given_up for record in state.quarantined)
    )
    assert all((store.root / record.path / STATE_NAME).is_file() for record in kept)
