"""What ranks report is passed on whole, also what they wrote in their last moment."""

import time
from pathlib import Path

import pytest

from storage.errors import StoreUnavailableError
from storage.objects.local_store import LocalStore
from tasks.cluster import ranks as ranks_of_machine
from tasks.cluster.ranks import HELD, Ranks
from tasks.preemption.signals import StopRequest
from tasks.supervision.hang import HangWatch
from tasks.supervision.watch import supervise
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.training import make_spec
from training.metrics.reporter import Report
from training.spec import SegmentSpec

REPORTED = [Report(phase="train", step=1), Report(phase="train", step=2, note="said at last", alarm="not saved")]


class _BriefRanks(Ranks):
    """Ranks that report, and have ended before anybody looks at them."""

    def __init__(self, spec: SegmentSpec) -> None:
        super().__init__(spec, grace_seconds=30)
        self._progress = spec.progress_file

    def is_running(self, wait_seconds: float) -> bool:
        self._progress.write_text("".join(f"{report.model_dump_json()}\n" for report in REPORTED), encoding="utf-8")
        return False


def test_what_ranks_reported_before_they_ended_is_passed_on(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    spec = make_spec(store, publish_small_dataset(store, tmp_path / "work", rows=100), tmp_path / "segment")
    passed_on: list[Report] = []
    assert not supervise(_BriefRanks(spec), HangWatch(60), StopRequest(), passed_on.append)
    assert passed_on == REPORTED


class _PatientRanks(_BriefRanks):
    """Ranks that report once, and end when they are asked to."""

    asked_at: float | None = None

    def is_running(self, wait_seconds: float) -> bool:
        super().is_running(wait_seconds)
        return self.asked_at is None

    def stop(self) -> None:
        self.asked_at = time.monotonic()


def test_ranks_are_asked_to_leave_while_a_checkpoint_is_being_promoted(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    spec = make_spec(store, publish_small_dataset(store, tmp_path / "work", rows=100), tmp_path / "segment")
    ranks, request = _PatientRanks(spec), StopRequest()
    promoted_at: list[float] = []

    def promote(_report: Report) -> None:
        """As one does that takes long: somebody asks to stop meanwhile, and it goes on until the ranks know."""
        request.exceptions.append(KeyboardInterrupt())
        deadline = time.monotonic() + 30
        while ranks.asked_at is None and time.monotonic() < deadline:
            time.sleep(0.01)  # this stands for hashing
        promoted_at.append(time.monotonic())

    assert not supervise(ranks, HangWatch(60), request, promote)
    assert ranks.asked_at is not None and ranks.asked_at < promoted_at[0]


class _UnheardRanks(_BriefRanks):
    """Ranks of another machine: for a while the store does not tell what they report."""

    looks = 0

    def is_running(self, wait_seconds: float) -> bool:
        return self.looks < 4

    def read_reports(self) -> list[Report]:
        self.looks += 1
        time.sleep(0.1)  # longer than the watch has patience
        if self.looks < 4:
            raise StoreUnavailableError("no answer")
        return REPORTED


def test_ranks_are_not_taken_to_hang_while_the_store_does_not_tell_what_they_report(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    spec = make_spec(store, publish_small_dataset(store, tmp_path / "work", rows=100), tmp_path / "segment")
    passed_on: list[Report] = []
    assert not supervise(_UnheardRanks(spec), HangWatch(0.05), StopRequest(), passed_on.append)
    assert passed_on[: len(REPORTED)] == REPORTED


class HeldAgent:
    """An agent with ranks that SIGKILL does not end, as where a file server or a device does not answer."""

    pid = 2**22 - 2  # no process has this number: it is the highest but one

    def is_at_work(self, wait_seconds: float) -> bool:
        time.sleep(wait_seconds)
        return True

    def give(self, order: Path, log: Path) -> None: ...

    def ask_to_leave(self) -> None: ...

    def wait(self, seconds: float) -> bool:
        time.sleep(seconds)
        return False

    def close(self) -> None: ...


@pytest.mark.parametrize("hang_seconds", [0.3, 600])
def test_ranks_that_the_kernel_holds_are_given_up_after_a_while_whether_they_hang_or_are_asked_to_leave(
    hang_seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ranks_of_machine, "KILLED_SECONDS", 0.3)
    monkeypatch.setattr(ranks_of_machine, "STACKS_SECONDS", 0.0)
    store = LocalStore(tmp_path / "store")
    spec = make_spec(store, publish_small_dataset(store, tmp_path / "work", rows=100), tmp_path / "segment")
    monkeypatch.setattr(ranks_of_machine, "AgentProcess", lambda *_arguments, **_named: HeldAgent())
    request, began = StopRequest(), time.monotonic()
    if hang_seconds == 600:
        request.make(KeyboardInterrupt())
    with Ranks(spec, grace_seconds=0.2) as ranks:
        assert supervise(ranks, HangWatch(hang_seconds), request, lambda _report: None) == (hang_seconds == 0.3)
    assert time.monotonic() - began < 30
    assert [record.getMessage() for record in caplog.records].count(HELD) == 1


def test_ranks_that_nobody_has_killed_are_not_given_up_however_late_their_supervisor_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(ranks_of_machine, "KILLED_SECONDS", 0.3)
    monkeypatch.setattr(ranks_of_machine, "kill_tree", killed.append)
    monkeypatch.setattr(ranks_of_machine, "AgentProcess", lambda *_arguments, **_named: HeldAgent())
    store = LocalStore(tmp_path / "store")
    spec = make_spec(store, publish_small_dataset(store, tmp_path / "work", rows=100), tmp_path / "segment")
    with Ranks(spec, grace_seconds=0.1) as ranks:
        ranks.stop()
        time.sleep(0.5)  # as a promotion may take, which the supervisor is at meanwhile
        assert ranks.is_running(0.0) and killed == [HeldAgent.pid]
