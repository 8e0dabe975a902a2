"""Who looks at a run goes on looking: over an outage of the store, and over a time in which nobody trains."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.commands import logs
from flows.commands.logs import follow_logs
from flows.commands.status import watch_status
from storage.errors import StoreUnavailableError
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.retention import RetentionPolicy
from storage.runs.run_state import SegmentRecord
from storage.runs.transitions import end_segment, promote, record_metrics
from tests.helpers.commands import wait_until
from tests.helpers.runs import lease_run, make_checkpoint, make_run, record_of

STEPS = 20


class LookedAtStore(LocalStore):
    """Counts how often a log is read, and does not answer while `is_away`."""

    is_away = False
    num_logs_read = 0

    def read(self, key: str) -> bytes:
        if self.is_away:
            raise StoreUnavailableError("no answer")
        self.num_logs_read += key.endswith(".log")
        return super().read(key)


class Run:
    """A run of two segments, each of which prints a line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = LookedAtStore(folder / "store")
        self.manifest: Manifest = make_run(self.store, steps=STEPS)

    def begin(self) -> int:
        fence = lease_run(self.manifest)
        self.store.write(f"runs/run/segments/{fence:08d}/ranks.log", b"of segment %d\n" % fence)
        return fence

    def end(self, fence: int, step: int) -> None:
        record = record_of(make_checkpoint(self.store, self.folder / "files", step, fence))
        self.manifest.commit("promoted", promote(record, RetentionPolicy(newest=3)))
        ended = SegmentRecord(
            fence=fence, outcome="completed" if step == STEPS else "preempted", cause="", first_step=0, last_step=step,
            world_size=1, planned_steps=1000, started_at=0.0, seconds=9.0, steps_lost=0, phases={},
        )  # fmt: skip
        self.manifest.commit("ended", end_segment(ended))

    def complete(self, fence: int) -> None:
        self.end(fence, STEPS)
        self.manifest.commit("evaluated", record_metrics({"macro_f1": 0.5}, STEPS))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(logs, "LOOK_SECONDS", 0.01)
    return Run(tmp_path)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """All that was printed so far."""
    so_far: list[str] = []

    def read() -> str:
        so_far.extend(capsys.readouterr())
        return "".join(so_far)

    return read


def looking(look: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    return thread


def test_the_log_of_a_run_that_nobody_trains_is_not_read_again_before_the_next_segment(
    run: Run, said: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "IDLE_SECONDS", 0.1)
    first = run.begin()
    following = looking(lambda: follow_logs(run.store, "run", None, None))
    assert wait_until(lambda: f"of segment {first}\n" in said())
    run.end(first, 10)
    assert wait_until(lambda: "Run 'run' is not in training" in said())
    before = run.store.num_logs_read
    time.sleep(0.2)  # looks for twenty, of which none may read it
    assert run.store.num_logs_read == before
    run.store.write(f"runs/run/segments/{first:08d}/ranks.log", b"of segment %d\nlast words\n" % first)
    second = run.begin()
    assert wait_until(lambda: f"of segment {second}\n" in said())
    run.complete(second)
    following.join(60)
    assert not following.is_alive()
    for line in (f"of segment {first}\n", "last words\n", f"of segment {second}\n", "is not in training"):
        assert said().count(line) == 1


def test_a_store_that_does_not_answer_for_a_while_ends_neither_a_log_nor_a_status(
    run: Run, said: Callable[[], str]
) -> None:
    fence = run.begin()
    threads = [
        looking(lambda: follow_logs(run.store, "run", None, None)),
        looking(lambda: watch_status(run.store, "run", 0.01)),
    ]
    assert wait_until(lambda: f"of segment {fence}\n" in said() and "running, step 0 of 20" in said())
    run.store.is_away = True
    words = "The store cannot be read just now; it is asked again: no answer"
    assert wait_until(lambda: said().count(words) == 2)  # by each
    run.store.is_away = False
    run.complete(fence)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert said().count(f"of segment {fence}\n") == 1 and "completed, step 20 of 20" in said()
