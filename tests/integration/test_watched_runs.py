"""A run that somebody looks at while it trains: its log and its status, read from its store alone.

One real run of two ranks: its first segment is asked to stop, the second one completes it. Another machine is a copy of
what the store lists, without the scratch beside it.
"""

import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.retention import RetentionPolicy
from storage.runs.run_state import RunState, SegmentRecord
from storage.runs.segments import Heartbeat, write_heartbeat
from storage.runs.transitions import end_segment, promote, record_metrics
from tests.helpers.commands import COMMAND, ROOT, Runner, StartedCommand, call_here, kill_everything, wait_until
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.runs import lease_run, make_checkpoint, make_run, record_of
from tests.helpers.tiny_runs import write_tiny_configuration

# Comes to its end only when it is given fewer steps.
ENDLESS = 1_000_000
EVERY_STEPS = 50


class Looking:
    """A command that looks at a run, as a process of its own; on a terminal, or with its output in files."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.stdout, self.stderr = folder / "looking.out", folder / "looking.err"
        self._line = [*COMMAND, *map(str, arguments)]
        self.process: subprocess.Popen[bytes]

    def __enter__(self) -> "Looking":
        with self.stdout.open("wb") as out, self.stderr.open("wb") as err:
            self.process = subprocess.Popen(self._line, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def wait_for(self, text: str) -> bool:
        return wait_until(lambda: text in self.stdout.read_text(), self.process)

    def press_ctrl_c(self) -> int:
        """Its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


@pytest.fixture
def runner(tmp_path: Path, prefect_server: dict[str, str]) -> Runner:
    write_parquet(tmp_path / "data" / "part-0.parquet", text_columns(200))
    configuration = write_tiny_configuration(tmp_path, "watched", tmp_path / "store", tmp_path / "data")
    settings = {"run": "watched", "store": tmp_path / "store", "train__ranks": 2, "train__steps": ENDLESS}
    return Runner(configuration, {**settings, "checkpoint__every_steps": EVERY_STEPS}, prefect_server)


@contextmanager
def training(runner: Runner) -> Iterator[StartedCommand]:
    process = runner.start()
    try:
        yield process
    finally:
        kill_everything(process)


def promoted_step(store: LocalStore) -> int:
    head = Manifest(store, "watched").find_head()
    return head.state.promoted.step if head is not None and head.state.promoted is not None else 0


def copy_elsewhere(store: LocalStore, folder: Path) -> str:
    """The run's address in a store that has what this one has now of its manifest and segments."""
    elsewhere = LocalStore(folder / "elsewhere")
    for part in ("manifest", "segments"):
        for key in store.list_keys(f"runs/watched/{part}/"):
            elsewhere.write(key, store.read(key))
    return f"{elsewhere.address}/runs/watched"


@pytest.mark.slow
def test_a_log_is_read_and_followed_from_the_store_while_the_run_trains_and_over_to_its_next_segment(
    runner: Runner, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path / "store")
    address = f"{store.address}/runs/watched"
    with training(runner) as process:
        assert wait_until(lambda: promoted_step(store) > 0, process), runner.log.read_text()
        with Looking(tmp_path, "logs", address, "--follow", "--rank", 0) as following:
            assert following.wait_for("Saved step"), runner.log.read_text()
            assert "[rank0]: Saved step" in call_here(["logs", copy_elsewhere(store, tmp_path)]).stdout
            assert process.poll() is None
            status = runner.status()
            assert status["state"] == "running" and status["live_step"] >= status["step"] > 0
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 128 + signal.SIGTERM, runner.log.read_text()
            (first,) = Manifest(store, "watched").load_head().state.segments
            assert first.outcome == "preempted"
            assert following.wait_for(f"Saved step {first.last_step:,}:")
            runner.run(train__steps=first.last_step + 7, train__ranks=1)
            assert following.process.wait(60) == 0, following.stderr.read_text()
            followed = following.stdout.read_text().splitlines()
            segments = following.stderr.read_text()
    state = Manifest(store, "watched").load_head().state
    assert state.is_complete
    second = state.segments[1]
    printed = [call_here(["logs", address, "--segment", one.fence]).stdout for one in state.segments]
    whole = [line for log in printed for line in log.splitlines() if line.startswith("[rank0]: ")]
    assert followed[: len(whole)] == whole  # and what the evaluation printed
    assert f"Saved step {second.last_step:,}:" in whole[-1]
    for one in state.segments:
        assert f"Segment {one.fence} of run 'watched', from step {one.first_step:,}:\n" in segments
    assert call_here(["logs", address]).stdout == printed[1]


def test_following_waits_for_the_first_segment_and_ends_by_ctrl_c_without_a_traceback(tmp_path: Path) -> None:
    manifest = make_run(LocalStore(tmp_path / "store"))
    with Looking(tmp_path, "logs", f"{tmp_path}/store/runs/run", "--follow") as following:
        assert wait_until(lambda: "waiting for its first" in following.stderr.read_text(), following.process)
        fence = lease_run(manifest)
        assert wait_until(lambda: f"Segment {fence} of run 'run'" in following.stderr.read_text(), following.process)
        assert following.press_ctrl_c() == 130
        assert "Traceback" not in following.stderr.read_text() and following.stdout.read_text() == ""


def test_a_log_may_be_read_by_somebody_who_wants_its_beginning_only(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    fence = lease_run(make_run(store))
    store.write(f"runs/run/segments/{fence:08d}/ranks.log", b"line\n" * 200_000)  # more than a pipe takes
    line = [*COMMAND, "logs", f"{store.address}/runs/run"]
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reading:
        assert reading.stdout is not None and reading.stderr is not None
        assert reading.stdout.readline() == "line\n"
        reading.stdout.close()
        assert "Traceback" not in reading.stderr.read()


def begin(store: LocalStore, steps: int = 20) -> tuple[Manifest, int]:
    """A run in training, by this process."""
    manifest = make_run(store, steps=steps)
    fence = lease_run(manifest)
    beat(store, fence, 3)
    return manifest, fence


def beat(store: LocalStore, fence: int, step: int) -> None:
    write_heartbeat(store, "run", fence, Heartbeat(beat=step, step=step, written_at=time.time()))


def complete(manifest: Manifest, fence: int, folder: Path) -> RunState:
    """Train it to its end, and test it."""
    record = record_of(make_checkpoint(manifest.store, folder / "files", 20, fence))
    manifest.commit("promoted", promote(record, RetentionPolicy(newest=3)))
    ended = SegmentRecord(
        fence=fence, outcome="completed", cause="", first_step=0, last_step=20, world_size=1,
        planned_steps=1000, started_at=0.0,
        seconds=9.0, steps_lost=0, phases={},
    )  # fmt: skip
    manifest.commit("ended", end_segment(ended))
    return manifest.commit("evaluated", record_metrics({"macro_f1": 0.5}, 20)).state


def test_without_a_terminal_a_watched_run_is_a_line_for_each_change_until_it_is_complete(tmp_path: Path) -> None:
    manifest, fence = begin(LocalStore(tmp_path / "store"))
    store = LocalStore(tmp_path / "store")
    with Looking(tmp_path, "status", f"{store.address}/runs/run", "--watch", "--every", 0.1) as watching:
        assert watching.wait_for("in training: step 3\n")
        beat(store, fence, 3)  # nothing new
        beat(store, fence, 12)
        assert watching.wait_for("in training: step 12\n")
        assert complete(manifest, fence, tmp_path).is_complete
        assert watching.process.wait(60) == 0
        lines = [line.partition("  ")[2] for line in watching.stdout.read_text().splitlines()]
    assert lines[:2] == [f"running, step 0 of 20, in training: step {step}" for step in (3, 12)]
    assert lines[-1] == "completed, step 20 of 20" and len(lines) == len(set(lines))


def test_on_a_terminal_a_watched_run_is_drawn_anew_and_stays_when_ctrl_c_ends_it(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    _manifest, fence = begin(store)
    own, terminal = pty.openpty()
    line = [*COMMAND, "status", f"{store.address}/runs/run", "--watch", "--every", "0.1"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    with subprocess.Popen(line, cwd=ROOT, stdin=terminal, stdout=terminal, stderr=terminal, env=environment) as process:
        os.close(terminal)
        try:
            shown = read_until(own, "in training: step 3, as of ")
            beat(store, fence, 12)
            shown += read_until(own, "in training: step 12, as of ")
            process.send_signal(signal.SIGINT)
            shown += read_to_end(own)
            assert process.wait(60) == 130
        finally:
            process.kill()
            os.close(own)
    assert "\x1b[1A\x1b[2K" in shown  # the lines of before are taken away
    assert "every 0.1 s; Ctrl-C ends it" in shown and "Traceback" not in shown
    assert "in training: step 12, as of " in shown[shown.rindex("\x1b[2K") :]


def read_until(terminal: int, text: str) -> str:
    """What is shown until this was."""
    shown = ""
    while text not in shown:
        shown += os.read(terminal, 4096).decode(errors="replace")
    return shown


def read_to_end(terminal: int) -> str:
    shown = ""
    while True:
        try:
            shown += os.read(terminal, 4096).decode(errors="replace")
        except OSError:  # EIO: nobody has the other side open any more
            return shown
