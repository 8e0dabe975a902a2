"""Requests to stop that are left in the store: who hears of them, and when nobody does."""

from pathlib import Path

import pytest

from storage.errors import RunBusyError, RunHandedOverError, RunStoppedError, StoreUnavailableError
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.segments import segment_path
from storage.runs.transitions import end_segment, take_lease
from storage.segment_notes import StopRecord, find_stop, write_stop
from tasks.preemption.signals import StopRequest
from tasks.prefect_bridge import stop_requests as stop_requests
from tasks.prefect_bridge.stop_requests import StopRequests
from tasks.run_paths import RunPaths
from tests.helpers.commands import wait_until
from tests.helpers.finished_runs import segments_of
from tests.helpers.holders import process_elsewhere
from tests.helpers.runs import lease_run, make_run

FENCE = 7


@pytest.fixture
def run_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    monkeypatch.setattr(stop_requests, "LOOK_SECONDS", 0.01)
    store = LocalStore(tmp_path / "store")
    return RunPaths(store, Manifest(store, "run"), tmp_path / "scratch", tmp_path / "data")


def ask(run_paths: RunPaths, fence: int) -> bool:
    return write_stop(run_paths.store, run_paths.manifest.run, fence, StopRecord(asked_by="ann on h1", asked_at=0.0))


def test_the_segment_that_is_asked_ends_and_says_who_asked(run_paths: RunPaths) -> None:
    request = StopRequest()
    with StopRequests(run_paths, FENCE, request):
        ask(run_paths, FENCE)
        assert wait_until(lambda: request.is_made)
    (error,) = request.exceptions
    assert isinstance(error, RunStoppedError)
    assert str(error) == "ann on h1 asked for the end of training with `holdfast stop` (1970-01-01 00:00 UTC)."


def test_a_later_segment_is_not_asked(run_paths: RunPaths) -> None:
    request = StopRequest()
    looking = StopRequests(run_paths, FENCE + 1, request)
    looks = count_looks(looking)
    ask(run_paths, FENCE)
    with looking:
        assert wait_until(lambda: len(looks) >= 3)
    assert not request.is_made


def test_a_flow_run_that_was_begun_again_ends_here_and_is_left_to_the_process_that_goes_on(run_paths: RunPaths) -> None:
    request = StopRequest()
    record = StopRecord(asked_by="Process 7 on h2", asked_at=0.0, is_handed_over=True)
    write_stop(run_paths.store, run_paths.manifest.run, FENCE, record)
    with StopRequests(run_paths, FENCE, request):
        assert wait_until(lambda: request.is_made)
    (error,) = request.exceptions
    assert isinstance(error, RunHandedOverError)
    assert str(error) == "Process 7 on h2 goes on with the run (1970-01-01 00:00 UTC)."


def test_who_lost_the_lease_to_another_process_does_not_work_on_until_the_next_checkpoint(
    run_paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_requests, "LOOK_AROUND_SECONDS", 0.01)
    manifest = make_run(LocalStore(Path(run_paths.store.address)))
    fence = lease_run(manifest)
    request = StopRequest()
    looking = StopRequests(run_paths, fence, request)
    looks = count_looks(looking)
    with looking:
        assert wait_until(lambda: len(looks) >= 3)
        assert not request.is_made  # it holds it
        manifest.commit("ended", end_segment(segments_of([("lost", "", 10, 0)])[0].model_copy(update={"fence": fence})))
        manifest.commit("taken", take_lease(process_elsewhere(), world_size=1))
        assert wait_until(lambda: request.is_made)
    (error,) = request.exceptions
    assert isinstance(error, RunBusyError) and "on another-host took the run over" in str(error)


@pytest.mark.parametrize(
    "content", [b'{"asked_by": "ann", "asked_at": 1.0, "reason": "new"}', b'{"by": "ann"}', b"\x00"]
)
def test_a_request_to_stop_that_a_later_version_wrote_or_that_is_damaged_is_heard(
    run_paths: RunPaths, content: bytes
) -> None:
    run_paths.store.write(f"{segment_path(run_paths.manifest.run, FENCE)}/stop.json", content)
    request = StopRequest()
    with StopRequests(run_paths, FENCE, request):
        assert wait_until(lambda: request.is_made)
    (error,) = request.exceptions
    assert isinstance(error, RunStoppedError) and "asked for the end of training" in str(error)


def test_who_asks_first_is_remembered(run_paths: RunPaths) -> None:
    assert ask(run_paths, FENCE)
    assert not write_stop(run_paths.store, run_paths.manifest.run, FENCE, StopRecord(asked_by="bob", asked_at=1.0))
    found = find_stop(run_paths.store, run_paths.manifest.run, FENCE)
    assert found is not None and found.asked_by == "ann on h1"


def test_a_store_that_does_not_answer_for_a_while_is_asked_again(
    run_paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(run_paths, FENCE)
    read, failures = LocalStore.read, ["once", "twice"]

    def fail_first(self: LocalStore, key: str) -> bytes:
        if key.endswith("stop.json") and failures:
            raise StoreUnavailableError(failures.pop())
        return read(self, key)

    monkeypatch.setattr(LocalStore, "read", fail_first)
    request = StopRequest()
    with StopRequests(run_paths, FENCE, request):
        assert wait_until(lambda: request.is_made)
    assert failures == []


def count_looks(looking: StopRequests) -> list[None]:
    """Grows with each look at the store."""
    looks: list[None] = []
    find = looking._find_stop

    def count() -> RunStoppedError | None:
        looks.append(None)
        return find()

    looking._find_stop = count  # type: ignore[method-assign]
    return looks


def test_flow_runs_are_noted_again_until_the_server_has_said_which_they_are(
    run_paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the note nobody could set their states, if this machine died."""
    monkeypatch.setattr(stop_requests, "LOOK_AROUND_SECONDS", 0.01)
    answers = [False, False, True]
    asked: list[int] = []

    def remember(*_: object) -> bool:
        asked.append(len(asked))
        return answers[asked[-1]]

    monkeypatch.setattr(stop_requests, "remember_flow_runs", remember)
    looking = StopRequests(run_paths, lease_run(make_run(run_paths.store)), StopRequest())
    looks = count_looks(looking)
    with looking:
        assert wait_until(lambda: len(asked) == len(answers))
        more = len(looks) + 3
        assert wait_until(lambda: len(looks) >= more)
    assert len(asked) == len(answers)
