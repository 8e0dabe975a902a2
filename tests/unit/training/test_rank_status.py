"""A rank tells where it is, also while its main thread waits for something that does not come."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

from tests.helpers.commands import wait_until
from training.data.shared_arrays import SharedArrays
from training.rank_status import Collective, Place, Pulse, RankPulse, read_pulses


def test_a_rank_that_waits_says_for_what_and_goes_on_beating(tmp_path: Path) -> None:
    pulse, is_over = Pulse(), threading.Event()
    pulse.begin(tmp_path, rank=3)

    def train() -> None:
        pulse.step, pulse.leaves = 7, 14
        with pulse.at(Place.COMPUTING), pulse.waiting_for_ranks(Collective.LOSSES):
            is_over.wait(60)

    training = threading.Thread(target=train)
    training.start()
    try:
        wait_until(lambda: [one.place for one in read_pulses(tmp_path)] == [Place.OTHERS])
        first = read_pulses(tmp_path)[0]
        wait_until(lambda: read_pulses(tmp_path)[0].beat > first.beat)
        later = read_pulses(tmp_path)[0]
    finally:
        is_over.set()
        training.join()
    assert (later.rank, later.step, later.leaves, later.place) == (3, 7, 14, Place.OTHERS)
    assert later.collective is Collective.LOSSES
    assert later.seconds > first.seconds


HOLDER = """
import fcntl, sys
with open(sys.argv[1], "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_rank_that_waits_for_the_lock_of_a_stopped_process_says_that_it_waits_for_another_one(tmp_path: Path) -> None:
    pulse = Pulse()
    pulse.begin(tmp_path, rank=0)
    shared = SharedArrays(tmp_path, "train-block", waiting=pulse.waiting_for_samples)
    places: list[Place] = []

    def watch() -> None:
        wait_until(lambda: read_pulses(tmp_path)[0].place is not Place.STARTING)
        places.append(read_pulses(tmp_path)[0].place)
        holder.kill()

    line = [sys.executable, "-c", HOLDER, str(tmp_path / ".train-block.lock")]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.send_signal(signal.SIGSTOP)
        wait_until(lambda: bool(read_pulses(tmp_path)))
        watching = threading.Thread(target=watch)
        watching.start()
        try:
            shared.get("1", lambda: {"numbers": [np.arange(3)]})
        finally:
            holder.kill()
            watching.join()
    assert places == [Place.SHARED]
    wait_until(lambda: read_pulses(tmp_path)[0].place is Place.STARTING)


def test_time_is_counted_where_it_was_spent(tmp_path: Path) -> None:
    pulse = Pulse()
    with pulse.at(Place.COMPUTING):
        with pulse.at(Place.INPUT):
            pass
        with pulse.waiting_for_ranks(Collective.GRADIENTS):
            pass
    pulse.begin(tmp_path, rank=0)
    wait_until(lambda: bool(read_pulses(tmp_path)))
    (told,) = read_pulses(tmp_path)
    assert set(told.spent) == {Place.STARTING, Place.COMPUTING, Place.INPUT, Place.OTHERS}
    assert (told.place, told.collective) == (Place.STARTING, None)


def test_a_pulse_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "pulse-0001.new").write_text("{")
    assert read_pulses(tmp_path) == []
    pulse = RankPulse(rank=1, host="n", beat=1, step=0, place=Place.STARTING, seconds=0, leaves=0, spent={})
    (tmp_path / "pulse-0001.json").write_text(pulse.model_dump_json())
    assert read_pulses(tmp_path) == [pulse]
