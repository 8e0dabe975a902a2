"""What is promoted, and what a run falls back to, where a disk or a part beside a checkpoint is damaged."""

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from prefect.events.schemas.events import Event

from storage.checkpoints.checkpoints import (
    INDEX_NAME,
    STATE_NAME,
    FoundCheckpoint,
    load_checkpoint,
    read_checkpoint_file,
)
from storage.errors import ObjectUnreadableError
from storage.objects.history import seal_history
from storage.objects.local_store import LocalStore
from storage.runs import manifest as manifests
from storage.runs.manifest import Manifest
from storage.runs.retention import RetentionPolicy
from storage.runs.transitions import promote
from tasks import segment
from tasks.cluster.job import Job
from tasks.configuration.run import DataConfig, RetryConfig, RunConfig
from tasks.preemption.signals import StopRequest
from tasks.prefect_bridge.alerts import PASSED_OVER
from tasks.promotion.promotion import promote_checkpoint, promote_newest
from tasks.run_paths import RunPaths
from tasks.segment import _Segment
from tasks.verification.quarantine import fall_back_to_valid
from tasks.verification.verdicts import VerdictMaker
from tests.helpers.failing_stores import FailingStore
from tests.helpers.misread_manifests import MisreadManifests
from tests.helpers.runs import (
    BATCH_SIZE,
    QUICK,
    find_complete_checkpoints,
    lease_run,
    make_checkpoint,
    make_run,
    record_of,
)
from training.checkpointing.restoring import StoredFile, read_checked
from training.configuration import CheckpointConfig, TrainConfig
from training.metrics.reporter import CheckpointReport

CONFIG = RunConfig(
    run="run", data=DataConfig(text="t", label="l", kind="binary"), train=TrainConfig(batch_size=BATCH_SIZE)
)
WEIGHTS = "model.safetensors"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def manifest(store: LocalStore) -> Manifest:
    return make_run(store)


@pytest.fixture
def run_paths(store: LocalStore, manifest: Manifest, tmp_path: Path) -> RunPaths:
    return RunPaths(store, manifest, tmp_path / "scratch", tmp_path / "data")


def give_a_bad_block(path: Path) -> None:
    """Reading the file fails as it does where a disk has a bad block."""
    path.unlink()
    path.symlink_to("/proc/self/mem")


def read_as_a_rank_does(store: LocalStore, found: FoundCheckpoint) -> None:
    load_checkpoint(store, found.path, found.digest)
    read_checkpoint_file(store, found, STATE_NAME)
    stated = found.index.files[WEIGHTS]
    read_checked(store, StoredFile(found.key_of(WEIGHTS), stated.num_bytes, stated.sha256, is_of_model=True))


def supervised(run_paths: RunPaths, store: LocalStore, retry: RetryConfig, monkeypatch: pytest.MonkeyPatch) -> _Segment:
    """Whoever supervises a segment, over a store of which some reads fail."""
    monkeypatch.setattr(segment, "promote", promote_checkpoint)
    config = CONFIG.model_copy(update={"store": store.address, "retry": retry})
    supervisor = _Segment(config, StopRequest())
    supervisor._run_paths = replace(run_paths, store=store, manifest=Manifest(store, "run"))
    return supervisor


@pytest.mark.parametrize("damage", [None, b"not what was written", b"", "a bad block"])
def test_a_checkpoint_is_promoted_whatever_became_of_the_loss_curve_before_it(
    store: LocalStore, run_paths: RunPaths, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes | str | None
) -> None:
    part = seal_history("run", "curve", {"loss": [[1, 0.5]]}, None)
    store.write(part.part.key, part.data)
    fence = lease_run(run_paths.manifest)
    make_checkpoint(store, tmp_path / "files", 10, fence, validated_step=10, history=part.part)
    if damage == b"":
        store.delete(part.part.key)
    elif isinstance(damage, str):
        give_a_bad_block(store.root / part.part.key)
    elif damage is not None:
        store.write(part.part.key, damage)
    record = promote_newest(CONFIG, run_paths, fence, VerdictMaker(QUICK))
    assert record is not None
    state = run_paths.manifest.load_head().state
    assert state.promoted is not None and state.promoted.step == 10 and not state.quarantined
    assert ("A part of the loss curve cannot be read" in caplog.text) == (damage is not None)


@pytest.mark.parametrize("num_misread", [1, 100])
def test_a_misread_manifest_says_nothing_about_the_checkpoint_that_is_to_be_promoted(
    run_paths: RunPaths, tmp_path: Path, num_misread: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "LOOK_AGAIN_SECONDS", (0.0, 0.0))
    fence = lease_run(run_paths.manifest)
    found = make_checkpoint(run_paths.store, tmp_path / "files", 10, fence)
    misread = MisreadManifests(Path(run_paths.store.address), num_misread)
    late, job = supervised(run_paths, misread, RetryConfig(), monkeypatch), cast("Job", None)
    record = late._take_up(CheckpointReport(path=found.path, step=10), fence, job)
    state = run_paths.manifest.load_head().state
    assert state.quarantined == []
    assert (record is not None) == (state.promoted is not None) == (num_misread == 1)


@pytest.mark.parametrize("name", [WEIGHTS, STATE_NAME, INDEX_NAME])
def test_a_run_falls_back_from_a_checkpoint_that_its_disk_cannot_read_and_tells(
    store: LocalStore, run_paths: RunPaths, tmp_path: Path, name: str, told: Callable[[], list[Event]]
) -> None:
    fence = lease_run(run_paths.manifest)
    for step in (10, 20):
        found = make_checkpoint(store, tmp_path / "files", step, fence)
        run_paths.manifest.commit("promoted", promote(record_of(found), RetentionPolicy(newest=2)))
    run_paths.manifest.commit("ended", lambda state, _: state.model_copy(update={"lease": None}))
    give_a_bad_block(store.root / found.path / name)
    with pytest.raises(ObjectUnreadableError, match=f"{name} cannot be read"):
        read_as_a_rank_does(store, found)
    state = fall_back_to_valid(run_paths, VerdictMaker(QUICK))
    assert state.promoted is not None and state.promoted.step == 10
    assert [(record.step, record.verdict) for record in state.quarantined] == [(20, "unreadable")]
    (event,) = told()
    assert (event.event, event.resource.id) == (PASSED_OVER, f"holdfast.{store.address}/{found.path}")
    assert event.payload.items() >= {"run": "run", "step": 20, "resume_step": 10}.items()
    assert "cannot be read and is passed over; its files stay" in event.payload["message"]
    assert "The resume point is step 10." in event.payload["message"]


def test_a_checkpoint_whose_ledger_the_disk_cannot_read_is_not_promoted_and_the_one_before_is(
    store: LocalStore, run_paths: RunPaths, tmp_path: Path
) -> None:
    fence = lease_run(run_paths.manifest)
    _, newer = (make_checkpoint(store, tmp_path / "files", step, fence) for step in (10, 20))
    assert newer.index.ledger is not None
    give_a_bad_block(store.root / newer.index.ledger.key)
    record = promote_newest(CONFIG, run_paths, fence, VerdictMaker(QUICK))
    assert record is not None and record.step == 10


@pytest.mark.parametrize("keep_best", [1, 0])
def test_the_best_model_is_promoted_before_a_later_checkpoint_that_would_overtake_it(
    store: LocalStore, run_paths: RunPaths, tmp_path: Path, keep_best: int
) -> None:
    """As where the ranks saved both while nobody supervised them, or while the store did not answer for the first."""
    fence = lease_run(run_paths.manifest)
    best, _, newest = (
        make_checkpoint(store, tmp_path / "files", step, fence, validated_step=step, best_step=20)
        for step in (20, 30, 40)
    )
    config = CONFIG.model_copy(update={"checkpoint": CheckpointConfig(keep_best=keep_best)})
    record = promote_newest(config, run_paths, fence, VerdictMaker(QUICK))
    assert record is not None and record.path == newest.path
    kept = [kept.path for kept in run_paths.manifest.load_head().state.kept]
    assert kept == ([newest.path, best.path] if keep_best else [newest.path])
    assert find_complete_checkpoints(store, "run", fence) == [newest, best][: len(kept)]


def test_the_best_model_is_tried_again_at_the_next_promotion_and_none_overtakes_it_meanwhile(
    store: LocalStore, run_paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = lease_run(run_paths.manifest)
    best, later, newest = (
        make_checkpoint(store, tmp_path / "files", step, fence, validated_step=step, best_step=20)
        for step in (20, 30, 40)
    )
    failing = FailingStore(store.root, errno.EIO, failures=2, path=best.path)
    supervisor, job = supervised(run_paths, failing, RetryConfig(), monkeypatch), cast("Job", None)
    for found in (best, later):
        assert supervisor._take_up(CheckpointReport(path=found.path, step=found.index.step), fence, job) is None
    assert run_paths.manifest.load_head().state.promoted is None
    record = supervisor._take_up(CheckpointReport(path=newest.path, step=40), fence, job)
    assert record is not None and record.step == 40
    state = run_paths.manifest.load_head().state
    assert [kept.path for kept in state.kept] == [newest.path, best.path] and state.quarantined == []


@pytest.mark.parametrize("verdict", ["unreadable", "damaged"])
@pytest.mark.parametrize("is_supervised", [True, False])
def test_a_best_model_that_cannot_be_read_for_good_is_put_aside_and_the_later_checkpoint_is_promoted(
    store: LocalStore, run_paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_supervised: bool,
    verdict: str,
) -> None:  # fmt: skip
    fence = lease_run(run_paths.manifest)
    best, *later = (
        make_checkpoint(store, tmp_path / "files", step, fence, validated_step=step, best_step=20)
        for step in (20, 30, 40)
    )
    if verdict == "unreadable":
        give_a_bad_block(store.root / best.path / WEIGHTS)
    else:
        (store.root / best.path / WEIGHTS).write_bytes(b"not what was written")
    supervisor, job = supervised(run_paths, store, QUICK, monkeypatch), cast("Job", None)
    if is_supervised:
        for found in later:
            supervisor._take_up(CheckpointReport(path=found.path, step=found.index.step), fence, job)
    else:
        promote_newest(CONFIG, run_paths, fence, VerdictMaker(QUICK))
    state = run_paths.manifest.load_head().state
    assert state.promoted is not None and state.promoted.path == later[-1].path
    assert [(aside.path, aside.verdict) for aside in state.quarantined] == [(best.path, verdict)]
    assert (store.root / best.path / INDEX_NAME).is_file()
