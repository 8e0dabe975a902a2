"""Whether a node that was asked to leave leaves alone: a clock is advanced by hand."""

from collections.abc import Iterator

import pytest

from tasks.cluster.leaving import DECIDING_SECONDS, HEARING_SECONDS, Leaving, Way

NODES = {0, 1, 2}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Iterator[Clock]:
    yield Clock()


def leaving_of(clock: Clock, min_nodes: int) -> Leaving:
    return Leaving(lambda num_nodes: num_nodes >= min_nodes, clock)


def test_a_node_that_was_not_asked_stays_whatever_others_were(clock: Clock) -> None:
    leaving = leaving_of(clock, 1)
    leaving.note(1)
    assert leaving.decide(0, NODES) is Way.STAY


def test_where_enough_others_stay_it_leaves_alone_after_it_has_heard_them(clock: Clock) -> None:
    leaving = leaving_of(clock, 2)
    leaving.ask()
    assert leaving.decide(0, NODES) is Way.UNDECIDED
    clock.now += HEARING_SECONDS
    assert leaving.decide(0, NODES) is Way.ALONE
    clock.now += DECIDING_SECONDS
    assert leaving.decide(0, {1, 2}) is Way.ALONE


def test_where_too_few_others_stay_all_leave_at_once(clock: Clock) -> None:
    leaving = leaving_of(clock, 3)
    leaving.ask()
    assert leaving.decide(0, NODES) is Way.TOGETHER


def test_those_that_were_asked_too_are_not_counted_on(clock: Clock) -> None:
    leaving = leaving_of(clock, 2)
    leaving.ask()
    assert leaving.decide(0, NODES) is Way.UNDECIDED
    leaving.note(2)
    assert leaving.decide(0, NODES) is Way.TOGETHER
    assert leaving.decide(0, {0, 1}) is Way.TOGETHER


def test_one_that_has_left_is_not_counted_twice(clock: Clock) -> None:
    leaving = leaving_of(clock, 1)
    leaving.note(2)
    leaving.ask()
    clock.now += HEARING_SECONDS
    assert leaving.decide(0, {0, 1}) is Way.ALONE


def test_a_view_that_is_not_decided_soon_is_waited_for_no_more(clock: Clock) -> None:
    leaving = leaving_of(clock, 1)
    leaving.ask()
    clock.now += HEARING_SECONDS + DECIDING_SECONDS
    assert leaving.decide(0, NODES) is Way.TOGETHER
