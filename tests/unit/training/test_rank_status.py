"""A rank tells where it is, also while its main thread waits for something that does not come."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

from tests.helpers.commands import wait_until
from training.data.shared_arrays import SharedArrays
from training.rank_status import Collective, Phase, RankStatus, StatusWriter, rank_status_file, read_rank_statuses


def test_a_rank_that_waits_says_for_what_and_goes_on_beating(tmp_path: Path) -> None:
    rank_status, is_over = StatusWriter(), threading.Event()
    rank_status.begin(tmp_path, rank=3)

    def train() -> None:
        rank_status.step, rank_status.microbatches = 7, 14
        with rank_status.at(Phase.COMPUTING), rank_status.waiting_for_ranks(Collective.PREDICTIONS):
            is_over.wait(60)

    training = threading.Thread(target=train)
    training.start()
    try:
        wait_until(lambda: [one.phase for one in read_rank_statuses(tmp_path)] == [Phase.OTHERS])
        first = read_rank_statuses(tmp_path)[0]
        wait_until(lambda: read_rank_statuses(tmp_path)[0].beat > first.beat)
        later = read_rank_statuses(tmp_path)[0]
    finally:
        is_over.set()
        training.join()
    assert (later.rank, later.step, later.microbatches, later.phase) == (3, 7, 14, Phase.OTHERS)
    assert later.collective is Collective.PREDICTIONS
    assert later.seconds > first.seconds


def test_a_status_that_is_taken_away_while_it_is_read_is_none(tmp_path: Path) -> None:
    status = RankStatus(rank=0, host="here", beat=1, step=3, phase=Phase.COMPUTING, seconds=0, microbatches=1, spent={})
    rank_status_file(tmp_path, 0).write_text(status.model_dump_json())
    rank_status_file(tmp_path, 1).symlink_to(tmp_path / "gone")  # listed, and not there
    assert read_rank_statuses(tmp_path) == [status]


HOLDER = """
import fcntl, sys
with open(sys.argv[1], "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_rank_that_waits_for_the_lock_of_a_stopped_process_says_that_it_waits_for_another_one(tmp_path: Path) -> None:
    rank_status = StatusWriter()
    rank_status.begin(tmp_path, rank=0)
    shared = SharedArrays(tmp_path, "train-block", waiting=rank_status.waiting_for_samples)
    phases: list[Phase] = []

    def watch() -> None:
        wait_until(lambda: read_rank_statuses(tmp_path)[0].phase is not Phase.STARTING)
        phases.append(read_rank_statuses(tmp_path)[0].phase)
        holder.kill()

    line = [sys.executable, "-c", HOLDER, str(tmp_path / ".train-block.lock")]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.send_signal(signal.SIGSTOP)
        wait_until(lambda: bool(read_rank_statuses(tmp_path)))
        watching = threading.Thread(target=watch)
        watching.start()
        try:
            shared.get("1", lambda: {"numbers": [np.arange(3)]})
        finally:
            holder.kill()
            watching.join()
    assert phases == [Phase.SHARED]
    wait_until(lambda: read_rank_statuses(tmp_path)[0].phase is Phase.STARTING)


def test_time_is_counted_where_it_was_spent(tmp_path: Path) -> None:
    rank_status = StatusWriter()
    with rank_status.at(Phase.COMPUTING):
        with rank_status.at(Phase.INPUT):
            pass
        with rank_status.waiting_for_ranks(Collective.GRADIENTS):
            pass
    rank_status.begin(tmp_path, rank=0)
    wait_until(lambda: bool(read_rank_statuses(tmp_path)))
    (told,) = read_rank_statuses(tmp_path)
    assert set(told.spent) == {Phase.STARTING, Phase.COMPUTING, Phase.INPUT, Phase.OTHERS}
    assert (told.phase, told.collective) == (Phase.STARTING, None)


def test_a_rank_status_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "rank-status-0001.new").write_text("{")
    assert read_rank_statuses(tmp_path) == []
    rank_status = RankStatus(
        rank=1, host="n", beat=1, step=0, phase=Phase.STARTING, seconds=0, microbatches=0, spent={}
    )
    (tmp_path / "rank-status-0001.json").write_text(rank_status.model_dump_json())
    assert read_rank_statuses(tmp_path) == [rank_status]
