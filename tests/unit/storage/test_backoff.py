"""Pauses between attempts: how long they may be, how they are drawn, and from what."""

import random

from storage.backoff import Backoff

BACKOFF = Backoff(first_seconds=1.0, limit_seconds=20.0)


def test_the_longest_pause_doubles_up_to_the_limit_however_many_attempts_there_are() -> None:
    longest = [BACKOFF.longest_seconds(attempt) for attempt in (1, 2, 3, 4, 5, 6, 7, 100_000)]
    assert longest == [1, 2, 4, 8, 16, 20, 20, 20]
    assert [BACKOFF.count_pauses(seconds) for seconds in (0, 0.5, 1, 1.5, 7, 7.5, 31, 52)] == [0, 1, 1, 2, 3, 4, 5, 7]


def test_pauses_are_drawn_between_a_share_of_the_longest_and_the_longest() -> None:
    backoff = Backoff(first_seconds=2.5, limit_seconds=5.0, least_share=0.6)
    for attempt, least, longest in ((1, 1.5, 2.5), (2, 3.0, 5.0), (3, 3.0, 5.0)):
        drawn = [backoff.draw_seconds(attempt) for _ in range(200)]
        assert least <= min(drawn) < max(drawn) <= longest
        assert backoff.mean_seconds(attempt) == (least + longest) / 2


def test_no_pause_is_drawn_from_the_generator_that_training_seeds_at_each_step() -> None:
    random.seed(7)
    expected = random.random()
    random.seed(7)
    first = BACKOFF.draw_seconds(1)
    assert random.random() == expected
    random.seed(7)
    assert BACKOFF.draw_seconds(1) != first
