"""Looking for rot: nothing that a resume or an audit needs is left out, and nothing sound is called rotten."""

import contextlib
import errno
import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.events.clients import PrefectEventsClient
from prefect.events.worker import EventsWorker
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.commands.prune import prune_run
from flows.commands.verify import verify_run
from storage.checkpoints import rereading
from storage.checkpoints.checkpoints import delete_checkpoint
from storage.datasets import load_dataset
from storage.errors import ConfigurationError, RunMissingError
from storage.objects.addresses import find_run_address
from storage.objects.digests import canonical_json, digest_of
from storage.objects.history import seal_history
from storage.objects.local_store import LocalStore
from storage.runs.earlier_segments import SEGMENTS_IN_PART
from storage.runs.manifest import Manifest, find_runs
from storage.runs.retention import RetentionPolicy
from storage.runs.run_state import RunState
from storage.runs.transitions import end_segment, promote, prune
from tasks.prefect_bridge.alerts import ROT, alert
from tasks.verification.scrubbing import expect_bytes, scrub_store
from tests.helpers.datasets import publish_anew
from tests.helpers.kept_runs import ended, make_kept_run
from tests.helpers.runs import find_complete_checkpoints, lease_run, make_checkpoint, record_of

# For what would wait for ever; nothing waits so long when all is well.
PATIENCE_SECONDS = 60


class WatchedStore(LocalStore):
    """Notes what is read; `spoil` may change what a reader gets, or do something meanwhile."""

    def __init__(self, root: Path, spoil: Callable[[str, bytes], bytes] = lambda _key, chunk: chunk) -> None:
        super().__init__(root)
        self.spoil = spoil
        self.keys: list[str] = []

    def read_chunks(self, key: str) -> Iterator[bytes]:
        self.keys.append(key)
        for chunk in super().read_chunks(key):
            yield self.spoil(key, chunk)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """A store with the run `run`, at rest: steps 10, 20 and 30 of two segments are kept."""
    store = LocalStore(tmp_path / "store")
    make_kept_run(store, tmp_path)
    return store


def state_of(store: LocalStore, run: str = "run") -> RunState:
    return Manifest(store, run).load_head().state


def flip(store: LocalStore, key: str, position: int = -1) -> None:
    path = store.root / key
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_weights_that_every_checkpoint_needs_are_read_once_and_never_pruned_and_their_rot_quarantines_none(
    tmp_path: Path,
) -> None:
    store = LocalStore(tmp_path / "store")
    make_kept_run(store, tmp_path, has_frozen=True)
    watched = WatchedStore(store.root)
    assert verify_run(watched, "run")["valid"] and scrub_store(watched)["ok"]
    key = "runs/run/start/0123/frozen.safetensors"
    assert watched.keys.count(key) == 2
    prune_run(store, "run", ["checkpoint.keep=2", "divergence.max_rollbacks=0"])
    assert len(state_of(store).kept) < 3 and key in store.list_keys("runs/run/start/")

    flip(store, key)
    verified = verify_run(store, "run")
    assert not any(checkpoint["valid"] for checkpoint in verified["checkpoints"])
    assert all(key in checkpoint["reason"] for checkpoint in verified["checkpoints"])
    (rot,) = scrub_store(store)["damaged"]
    assert rot["kind"] == "start" and key in rot["message"] and "Every checkpoint of the run needs" in rot["message"]
    assert not state_of(store).quarantined


def test_all_that_a_resume_or_an_audit_needs_is_read_and_nothing_twice(store: LocalStore) -> None:
    watched = WatchedStore(store.root)
    result = scrub_store(watched)
    needed = {key for key in store.list_keys("") if "/manifest/" not in key and not key.endswith("dataset.json")}
    assert set(watched.keys) == needed and len(watched.keys) == len(needed)
    assert (result["ok"], result["damaged"], result["skipped"], result["misread"]) == (True, [], {}, 0)
    assert (result["runs"], result["checkpoints"], result["objects"]) == (["run"], 3, len(needed))
    assert result["bytes"] == sum((store.root / key).stat().st_size for key in needed)
    assert 0.5 * result["bytes"] < expect_bytes(store, None) <= result["bytes"]


def test_a_flipped_bit_in_any_of_it_is_named_with_what_was_expected_and_found(store: LocalStore) -> None:
    watched = WatchedStore(store.root)
    scrub_store(watched)
    head = max(store.list_keys("runs/run/manifest/"))
    generation, original = Manifest(store, "run").load_head().generation, {}
    for key in [*watched.keys, head]:
        original[key] = (store.root / key).read_bytes()
        flip(store, key)
        result = scrub_store(store, "run")
        (rot,) = result["damaged"]
        assert not result["ok"] and key in rot["message"]
        assert "expected" in rot["message"] or key == head
        assert rot["is_quarantined"] == (rot["kind"] == "checkpoint") == ("/checkpoints/" in key)
        (store.root / key).write_bytes(original[key])
        for later in list(store.list_keys("runs/run/manifest/"))[generation:]:
            store.delete(later)  # as if nothing had been quarantined
    assert scrub_store(store)["ok"]


def test_a_damaged_resume_point_is_quarantined_and_the_next_older_one_takes_its_place(store: LocalStore) -> None:
    newest = state_of(store).kept[0]
    flip(store, f"{newest.path}/state.json")
    (rot,) = scrub_store(store)["damaged"]
    assert (rot["step"], rot["is_quarantined"], rot["resource"]) == (30, True, f"{store.address}/{newest.path}")
    state = state_of(store)
    assert state.promoted is not None and state.promoted.step == 20
    assert [(record.step, record.path) for record in state.quarantined] == [(30, newest.path)]
    assert "state.json was changed" in state.quarantined[0].reason
    assert scrub_store(store)["ok"]


def test_a_damaged_checkpoint_of_a_run_in_training_is_told_and_left_to_its_segment(store: LocalStore) -> None:
    lease_run(Manifest(store, "run"))
    before = Manifest(store, "run").load_head()
    flip(store, f"{state_of(store).kept[1].path}/index.json")
    (rot,) = scrub_store(store)["damaged"]
    assert (rot["step"], rot["is_quarantined"]) == (20, False)
    assert "A process holds the run's lease" in rot["message"]
    assert Manifest(store, "run").load_head() == before


@pytest.mark.parametrize("name", ["index.json", "model.safetensors", "state.json"])
def test_a_checkpoint_that_training_deletes_while_it_is_read_is_no_rot(store: LocalStore, name: str) -> None:
    oldest = state_of(store).kept[-1]

    def delete_it(key: str, chunk: bytes) -> bytes:
        if key == f"{oldest.path}/{name}" and state_of(store).kept[-1] == oldest:
            Manifest(store, "run").commit("pruned", prune({oldest.path}, ()))
            delete_checkpoint(store, oldest.path)
        return chunk

    result = scrub_store(WatchedStore(store.root, delete_it))
    assert [record.step for record in state_of(store).kept] == [30, 20]
    assert result["ok"] and result["checkpoints"] == 2
    assert state_of(store).quarantined == []


def test_what_is_read_wrong_once_and_right_the_second_time_is_no_rot_but_said(
    store: LocalStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoiled: list[str] = []

    def spoil_once(key: str, chunk: bytes) -> bytes:
        if key.endswith("model.safetensors") and not spoiled:
            spoiled.append(key)
            return bytes([chunk[0] ^ 1]) + chunk[1:]
        return chunk

    result = scrub_store(WatchedStore(store.root, spoil_once))
    assert spoiled and result["ok"] and result["misread"] == 1
    assert "check the memory and the network" in caplog.text


@pytest.mark.parametrize("is_there", [True, False])
def test_a_file_that_cannot_be_read_is_told_and_nothing_is_quarantined(store: LocalStore, is_there: bool) -> None:
    before = state_of(store)
    path = store.root / before.kept[0].path / "state.json"
    path.unlink()
    if is_there:
        path.symlink_to("/proc/self/mem")  # whose first bytes answer with the error of a dying disk
    (rot,) = scrub_store(store)["damaged"]
    assert (rot["step"], rot["is_quarantined"], rot["is_unreadable"]) == (30, False, True)
    assert ("state.json cannot be read" if is_there else "state.json is missing") in rot["message"]
    assert "Nothing was quarantined" in rot["message"] and "is damaged" not in rot["message"]
    assert state_of(store) == before


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOENT])
def test_a_moment_without_checkpoints_leaves_a_run_as_it_was(
    store: LocalStore, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real, is_over = state_of(store), Path.open, list[bool]()

    def open_or_fail(path: Path, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if not is_over and "/checkpoints/" in str(path):
            raise OSError(number, "told to fail", str(path))
        return real(path, mode, *arguments, **named)

    monkeypatch.setattr(Path, "open", open_or_fail)
    monkeypatch.setattr(rereading, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: is_over.append(True)))
    result = scrub_store(store)
    assert is_over and result["ok"] and result["misread"] > 0
    assert state_of(store) == before


def test_runs_of_a_store_share_a_data_set_and_one_that_is_gone_is_told(store: LocalStore, tmp_path: Path) -> None:
    make_kept_run(store, tmp_path, "second-run")
    store.delete(f"datasets/{state_of(store).dataset_digest}/dataset.json")
    result = scrub_store(store)
    assert find_runs(store) == result["runs"] == ["run", "second-run"]
    assert [(rot["kind"], rot["run"]) for rot in result["damaged"]] == [("dataset", "run")]
    assert "dataset.json is missing" in result["damaged"][0]["message"]
    assert scrub_store(store, "second-run")["ok"]


def test_a_data_set_that_was_made_again_to_other_bytes_is_told_and_nobody_is_told_to_delete_it(
    store: LocalStore,
) -> None:
    digest = state_of(store).dataset_digest
    publish_anew(store, load_dataset(store, digest).model_copy(update={"versions": {"duckdb": "99.0"}}))
    (rot,) = scrub_store(store)["damaged"]
    assert (rot["kind"], rot["is_replaced"]) == ("dataset", True)
    assert "is not the one that the run was begun with" in rot["message"] and "duckdb 99.0" in rot["message"]
    assert "delete" not in rot["message"].lower()


def test_a_run_of_another_version_is_left_out_and_named(store: LocalStore, tmp_path: Path) -> None:
    manifest = make_kept_run(store, tmp_path, "second-run")
    key = max(store.list_keys("runs/second-run/manifest/"))
    content = json.loads(store.read(key)) | {"format": 99}
    del content["digest"]
    store.write(key, canonical_json(content | {"digest": digest_of(content)}))
    result = scrub_store(store)
    assert (result["ok"], result["runs"], list(result["skipped"])) == (True, ["run"], [manifest.run])
    assert "format 99" in result["skipped"]["second-run"]


def test_a_copied_run_is_left_out_and_named(store: LocalStore) -> None:
    shutil.copytree(store.root / "runs/run", store.root / "runs/copy")
    result = scrub_store(store)
    assert (result["ok"], result["runs"]) == (True, ["run"])
    assert "holds the manifest of run 'run'" in result["skipped"]["copy"]


def test_a_store_without_runs_and_a_run_that_is_not_there_are_one_clear_error(store: LocalStore) -> None:
    with pytest.raises(ConfigurationError, match="no runs in"):
        scrub_store(LocalStore(store.root / "datasets"))
    address = find_run_address(f"{store.address}/runs/another")
    assert address is not None
    with pytest.raises(RunMissingError, match="another"):
        scrub_store(*address)


def test_a_limit_on_the_bandwidth_is_kept(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only sleeping moves: what reading takes on this machine plays no part."""
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds))
    monkeypatch.setattr(rereading, "time", clock)
    num_bytes = scrub_store(store)["bytes"]
    assert now == [100.0]
    scrub_store(store, max_bytes_per_second=num_bytes / 0.4)
    assert now == [pytest.approx(100.4)]


def test_an_alert_warns_and_does_not_wait_for_a_server_that_does_not_answer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_returned = threading.Event()
    seen: list[bool] = []

    def answer_nobody() -> None:
        with contextlib.suppress(TimeoutError), listening.accept()[0]:
            seen.append(has_returned.wait(PATIENCE_SECONDS))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(PATIENCE_SECONDS)
        server = threading.Thread(target=answer_nobody)
        server.start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/api"
        # Prefect keeps a process's first connection, whatever address later settings name: that of another test.
        EventsWorker.set_client_override(PrefectEventsClient, api_url=address)
        try:
            with temporary_settings({PREFECT_API_URL: address}):
                alert(ROT, "store/runs/run", "bits have rotted", step=3)
                has_returned.set()
                server.join()
        finally:
            EventsWorker.set_client_override(None)
    assert seen == [True]  # it was tried, in a thread of Prefect's, and was waiting all the time
    assert "bits have rotted" in caplog.text


def test_a_found_checkpoint_is_needed_for_nothing_when_it_was_never_promoted(store: LocalStore, tmp_path: Path) -> None:
    fence = lease_run(Manifest(store, "run"))
    found: Any = make_checkpoint(store, tmp_path / "files", 40, fence)
    flip(store, f"{found.path}/state.json")
    assert find_complete_checkpoints(store, "run", fence)
    assert scrub_store(store)["ok"]


def test_damaged_parts_of_the_history_are_named(store: LocalStore, tmp_path: Path) -> None:
    manifest = Manifest(store, "run")
    fence = lease_run(manifest)
    oldest = seal_history("run", "curve", {"loss": [[10, 0.5, 0.1]], "validation": []}, None)
    newest = seal_history("run", "curve", {"loss": [[20, 0.5, 0.1]], "validation": []}, oldest.part)
    found = make_checkpoint(store, tmp_path / "more", 40, fence, history=newest.part)
    for sealed in (oldest, newest):
        sealed.write(store)
    manifest.commit("promoted", promote(record_of(found), RetentionPolicy(newest=3)))
    assert scrub_store(store)["ok"]
    for sealed in (oldest, newest):
        flip(store, sealed.part.key)
        (rot,) = scrub_store(store)["damaged"]
        assert (rot["kind"], rot["is_quarantined"]) == ("history", False)
        assert sealed.part.key in rot["message"] and "expected" in rot["message"]
        sealed.write(store)


def test_a_damaged_part_of_the_manifest_is_found_also_by_a_process_that_read_it_before(store: LocalStore) -> None:
    manifest = Manifest(store, "run")
    for _ in range(2 * SEGMENTS_IN_PART):
        manifest.commit("ended", end_segment(ended(lease_run(manifest), 30)))
    assert scrub_store(store)["ok"]
    (key,) = store.list_keys("runs/run/history/")
    flip(store, key)
    for opened in (store, LocalStore(store.root)):  # the first one has read it
        (rot,) = scrub_store(opened)["damaged"]
        assert rot["kind"] == "manifest" and key in rot["message"]
