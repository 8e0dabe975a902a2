"""A background thread goes on after any error until its block is left, and logs the error."""

import threading
from pathlib import Path

import pytest

from storage.objects.local_store import LocalStore
from storage.runs import manifest as manifests
from storage.runs.manifest import Manifest
from storage.runs.segments import find_heartbeat, write_heartbeat
from storage.segment_notes import StopRecord, write_stop
from tasks import background
from tasks.background import BackgroundThread
from tasks.preemption.signals import StopRequest
from tasks.prefect_bridge import stop_requests
from tasks.prefect_bridge.stop_requests import StopRequests
from tasks.run_paths import RunPaths
from tasks.supervision import heartbeat as heartbeats
from tasks.supervision.heartbeat import Heartbeat
from tests.helpers.commands import wait_until
from tests.helpers.misread_manifests import MisreadManifests
from tests.helpers.runs import lease_at, lease_run, make_run


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "BEGIN_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(heartbeats, "HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(stop_requests, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(stop_requests, "LOOK_AROUND_SECONDS", 0.01)


class Failing(BackgroundThread):
    def __init__(self) -> None:
        super().__init__("failing")
        self.num_begun = 0

    def _accompany(self) -> None:
        self.num_begun += 1
        raise KeyError("unforeseen")


def test_what_fails_begins_again_until_the_block_is_left_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with Failing() as failing:
        assert wait_until(lambda: failing.num_begun >= 5)
    ended_at = failing.num_begun
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 1 and "(failing) failed" in logged[0] and "KeyError: 'unforeseen'" in logged[0]
    assert failing.num_begun == ended_at and not any(one.name == "failing" for one in threading.enumerate())


def test_a_heart_beats_on_after_any_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    run_paths = RunPaths(store, Manifest(store, "run"), tmp_path / "scratch", tmp_path / "data")
    errors = [ValueError("unforeseen"), OSError("too")]

    def write(*arguments: object) -> None:
        if errors:
            raise errors.pop()
        write_heartbeat(*arguments)  # type: ignore[arg-type]

    def beats_on() -> bool:
        found = find_heartbeat(store, "run", 2)
        return found is not None and found.beat > 3

    monkeypatch.setattr(heartbeats, "write_heartbeat", write)
    with Heartbeat(run_paths, lease_at(2)):
        assert wait_until(beats_on)


@pytest.mark.parametrize("times", [1, 50])
def test_a_request_to_stop_is_heard_after_a_manifest_was_misread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr(manifests, "LOOK_AGAIN_SECONDS", (0.0, 0.0))
    store = MisreadManifests(tmp_path, 0)
    fence = lease_run(make_run(store))
    run_paths = RunPaths(store, Manifest(store, "run"), tmp_path / "scratch", tmp_path / "data")
    request = StopRequest()
    with StopRequests(run_paths, fence, request):
        store.num_left = times
        assert wait_until(lambda: store.num_left == 0)
        write_stop(store, "run", fence, StopRecord(asked_by="ann", asked_at=0.0))
        assert wait_until(lambda: request.is_made)
