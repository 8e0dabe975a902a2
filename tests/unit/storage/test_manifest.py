"""The manifest: one winner, nothing overwritten, every changed byte noticed."""

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.errors import (
    ConflictError,
    CorruptManifestError,
    FencedError,
    IncompatibleRunError,
    RunBusyError,
    RunMissingError,
)
from storage.objects.digests import canonical_json, digest_of
from storage.objects.local_store import LocalStore
from storage.runs import manifest as manifests
from storage.runs.holders import this_process
from storage.runs.manifest import GENERATION_FORMAT, Manifest
from storage.runs.retention import RetentionPolicy
from storage.runs.rollbacks.quarantine import quarantine
from storage.runs.run_state import CheckpointRecord, RunState, SegmentRecord
from storage.runs.transitions import end_segment, promote, prune, record_metrics, take_lease, take_over
from tests.helpers.misread_manifests import MisreadManifests
from tests.helpers.runs import lease_run, make_run


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "LOOK_AGAIN_SECONDS", (0.0, 0.0))


@pytest.fixture
def manifest(store: LocalStore) -> Manifest:
    return make_run(store)


def checkpoint(step: int, fence: int) -> CheckpointRecord:
    path = f"runs/run/checkpoints/{step:012d}-f{fence:08d}"
    return CheckpointRecord(
        step=step, path=path, digest="0" * 64, weights_sha256="1" * 64, num_bytes=1, fence=fence, promoted_at=1.0
    )


def ended(fence: int) -> SegmentRecord:
    return SegmentRecord(
        fence=fence, outcome="lost", cause="", first_step=0, last_step=0, world_size=1,
        planned_steps=1000, started_at=0.0, seconds=0.0,
        steps_lost=0, phases={},
    )  # fmt: skip


def test_a_run_that_was_never_started_is_one_clear_error(store: LocalStore) -> None:
    with pytest.raises(RunMissingError, match="no run 'nobody'"):
        Manifest(store, "nobody").load_head()


def test_a_run_is_created_once(store: LocalStore, manifest: Manifest) -> None:
    with pytest.raises(ConflictError):
        make_run(store)
    assert manifest.load_head().generation == 1


def test_every_commit_is_a_new_generation_and_the_old_ones_stay(store: LocalStore, manifest: Manifest) -> None:
    before = {key: store.read(key) for key in store.list_keys("runs/")}
    lease_run(manifest)
    assert manifest.load_head().generation == 2
    assert {key: store.read(key) for key in before} == before


def test_of_two_that_take_the_lease_one_wins_and_the_other_is_told_who_has_it(manifest: Manifest) -> None:
    results: list[str] = []
    barrier = threading.Barrier(2)

    def take() -> None:
        barrier.wait()
        try:
            manifest.commit("segment began", take_lease(this_process(), 1))
        except RunBusyError as error:
            results.append(str(error))
        else:
            results.append("won")

    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result == "won" for result in results) == [False, True]
    assert any(f"process {this_process().pid}" in result for result in results)


def test_writers_that_race_lose_nothing(store: LocalStore, manifest: Manifest) -> None:
    def add(number: int) -> None:
        def change(state: RunState, _generation: int) -> RunState:
            return state.model_copy(update={"config": {**state.config, str(number): number}})

        manifest.commit("configured", change)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert manifest.load_head().state.config == {str(number): number for number in range(6)}


def test_a_segment_whose_lease_is_over_can_promote_nothing(manifest: Manifest) -> None:
    zombie = lease_run(manifest)
    manifest.commit("ended", end_segment(ended(zombie)))
    with pytest.raises(FencedError, match="held by no process"):
        manifest.commit("promoted", promote(checkpoint(10, zombie), RetentionPolicy(newest=3)))
    successor = lease_run(manifest)
    with pytest.raises(FencedError, match=f"held by segment {successor}"):
        manifest.commit("promoted", promote(checkpoint(10, zombie), RetentionPolicy(newest=3)))
    assert manifest.load_head().state.promoted is None


def test_of_two_that_take_a_lease_over_one_wins_and_the_fence_stays(manifest: Manifest) -> None:
    lease_run(manifest)
    lease = manifest.load_head().state.lease
    assert lease is not None
    first, second = (lease.holder.model_copy(update={"pid": lease.holder.pid + number}) for number in (1, 2))
    taken = manifest.commit("watched by another process", take_over(lease, first)).state.lease
    assert taken == lease.model_copy(update={"holder": first})
    with pytest.raises(RunBusyError, match=f"taken over by process {first.pid}"):
        manifest.commit("watched by another process", take_over(lease, second))
    manifest.commit("ended", end_segment(ended(lease.fence)))
    with pytest.raises(FencedError, match="held by no process"):
        manifest.commit("watched by another process", take_over(taken, second))


def test_promotion_moves_forward_and_keeps_the_newest(manifest: Manifest) -> None:
    fence = lease_run(manifest)
    for step in (10, 20, 30, 40):
        manifest.commit("promoted", promote(checkpoint(step, fence), RetentionPolicy(newest=3)))
    with pytest.raises(ConflictError, match="moves forward"):
        manifest.commit("promoted", promote(checkpoint(40, fence), RetentionPolicy(newest=3)))
    state = manifest.load_head().state
    assert [record.step for record in state.kept] == [40, 30, 20]
    assert state.promoted == state.kept[0]


def test_setting_the_resume_point_aside_makes_the_next_older_one_the_resume_point(manifest: Manifest) -> None:
    fence = lease_run(manifest)
    for step in (10, 20):
        manifest.commit("promoted", promote(checkpoint(step, fence), RetentionPolicy(newest=3)))
    manifest.commit("evaluated", record_metrics({"macro_f1": 0.5}, 20))
    state = manifest.commit("quarantined", quarantine(20, checkpoint(20, fence).path, "a flipped bit", fence)).state
    assert state.promoted is not None
    assert state.promoted.step == 10
    assert state.metrics is None
    assert [record.reason for record in state.quarantined] == ["a flipped bit"]


def test_metrics_of_another_step_than_the_resume_point_are_refused(manifest: Manifest) -> None:
    with pytest.raises(ConflictError):
        manifest.commit("evaluated", record_metrics({"macro_f1": 0.5}, 20))


def test_every_flipped_byte_of_the_head_is_noticed(store: LocalStore, manifest: Manifest) -> None:
    lease_run(manifest)
    path = store.fetch(list(store.list_keys("runs/run/manifest/"))[-1])
    original = path.read_bytes()
    noticed = 0
    for position in range(len(original)):
        damaged = bytearray(original)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        try:
            manifest.load_head()
        except CorruptManifestError as error:
            assert str(path) in str(error)
            noticed += 1
    path.write_bytes(original)
    assert noticed == len(original)
    assert manifest.load_head().generation == 2


def test_a_head_that_is_misread_is_read_again_before_it_is_called_damaged(
    store: LocalStore, manifest: Manifest
) -> None:
    lease_run(manifest)
    for times in range(3):
        assert Manifest(MisreadManifests(store.root, times), "run").load_head() == manifest.load_head()
    with pytest.raises(CorruptManifestError, match="does not have the digest it states"):
        Manifest(MisreadManifests(store.root, 3), "run").load_head()


def test_a_generation_that_stands_under_another_number_is_noticed(store: LocalStore, manifest: Manifest) -> None:
    lease_run(manifest)
    keys = list(store.list_keys("runs/run/manifest/"))
    store.write(keys[1], store.read(keys[0]))
    with pytest.raises(CorruptManifestError):
        manifest.load_head()


def test_generations_with_equal_content_have_different_bytes(store: LocalStore, manifest: Manifest) -> None:
    for _ in range(2):
        manifest.commit("nothing", lambda state, _generation: state)
    contents = [json.loads(store.read(key))["commit_id"] for key in store.list_keys("runs/run/manifest/")]
    assert len(set(contents)) == 3


def test_a_metric_and_a_discarded_checkpoint_are_remembered(manifest: Manifest) -> None:
    fence = lease_run(manifest)
    for step in (10, 20):
        validated = checkpoint(step, fence).model_copy(update={"metric": 0.25})
        manifest.commit("promoted", promote(validated, RetentionPolicy(newest=3)))
    manifest.commit("quarantined", quarantine(20, checkpoint(20, fence).path, "a flipped bit", fence))
    manifest.commit("pruned", prune((), {checkpoint(20, fence).path}))
    state = manifest.load_head().state
    assert state.kept[0].metric == 0.25 and state.quarantined[0].is_discarded


def test_a_manifest_of_a_later_version_is_refused_and_not_called_damaged(store: LocalStore, manifest: Manifest) -> None:
    key = list(store.list_keys("runs/run/manifest/"))[-1]
    later = json.loads(store.read(key)) | {"format": GENERATION_FORMAT + 1, "something": "new"}
    del later["digest"]
    store.write(key, canonical_json({**later, "digest": digest_of(later)}))
    reads = f"has format {GENERATION_FORMAT + 1}, this version of Holdfast reads format {GENERATION_FORMAT}"
    with pytest.raises(IncompatibleRunError, match=reads):
        manifest.load_head()


def test_the_manifest_of_another_run_is_refused_however_it_is_read_or_written(
    store: LocalStore, manifest: Manifest
) -> None:
    shutil.copytree(store.root / "runs/run", store.root / "runs/copy")
    before = list(store.list_keys(""))
    for use in (Manifest.load_head, Manifest.find_head, lease_run):
        with pytest.raises(IncompatibleRunError, match=r"runs/copy holds the manifest of run 'run', not of 'copy'"):
            use(Manifest(store, "copy"))
    assert list(store.list_keys("")) == before
    assert manifest.load_head().state.run == "run"


def test_a_checkpoint_is_quarantined_by_the_holder_of_the_lease_or_while_nobody_holds_it(manifest: Manifest) -> None:
    zombie = lease_run(manifest)
    manifest.commit("promoted", promote(checkpoint(10, zombie), RetentionPolicy(newest=3)))
    manifest.commit("ended", end_segment(ended(zombie)))
    lease_run(manifest)
    with pytest.raises(FencedError):
        manifest.commit("quarantined", quarantine(10, checkpoint(10, zombie).path, "missing", zombie))
    with pytest.raises(RunBusyError):
        manifest.commit("quarantined", quarantine(10, checkpoint(10, zombie).path, "missing", None))
    assert manifest.load_head().state.promoted is not None


def test_a_commit_whose_reply_was_lost_is_recognised_as_ours(
    store: LocalStore, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = LocalStore.write_if_absent

    def put_twice(self: LocalStore, key: str, data: bytes) -> None:
        put(self, key, data)
        put(self, key, data)  # as a network file system does that repeats a request

    monkeypatch.setattr(LocalStore, "write_if_absent", put_twice)
    fence = lease_run(manifest)
    assert fence == manifest.load_head().generation == 2


class LaggingListings(LocalStore):
    """As a network file system whose clients keep what is in a folder for a while: what others put is not listed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._listed: dict[str, list[str]] = {}

    def list_keys(self, prefix: str, after: str = "", most: int | None = None) -> Iterator[str]:
        listed = self._listed.setdefault(prefix, list(super().list_keys(prefix)))
        yield from [key for key in listed if key > after][:most]


def test_a_commit_goes_on_from_what_others_committed_though_listings_lag_behind(
    manifest: Manifest, store: LocalStore
) -> None:
    here = Manifest(LaggingListings(store.root), "run")
    assert here.load_head().generation == 1
    for number in range(3):
        manifest.commit(f"by another machine {number}", lambda state, _: state)
    committed = here.commit("ours", lambda state, number: state.model_copy(update={"steps_total": number}))
    assert committed.generation == 5 and committed == manifest.load_head()
    assert here.load_head() == committed  # what was met is never forgotten for what an old listing shows


def test_a_process_reads_its_own_commit_though_listings_lag_behind(store: LocalStore, manifest: Manifest) -> None:
    here = Manifest(LaggingListings(store.root), "run")
    for number in range(2, 5):
        assert here.commit("ours", lambda state, _: state).generation == number
        assert here.load_head().generation == number


def test_a_store_that_was_put_back_to_an_earlier_state_is_read_as_it_is(store: LocalStore, manifest: Manifest) -> None:
    for _ in range(3):
        manifest.commit("to be undone", lambda state, _: state)
    for key in list(store.list_keys("runs/run/manifest/"))[2:]:
        store.delete(key)
    assert manifest.load_head().generation == 2
    assert manifest.commit("anew", lambda state, _: state).generation == 3
    shutil.rmtree(store.root / "runs")
    assert manifest.find_head() is None
