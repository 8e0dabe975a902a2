"""A rank tells where it is, also while its main thread waits for something that does not come."""

import threading
from pathlib import Path

from tests.helpers.commands import wait_until
from training.pulse import Collective, Place, Pulse, RankPulse, read_pulses


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
