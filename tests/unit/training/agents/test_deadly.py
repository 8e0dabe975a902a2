"""Which deaths prove that a microbatch ends whoever computes it, and which do not."""

import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from training.agents.deadly import MOST_ROWS, DeadlyMicrobatches
from training.agents.ends import RankEnd
from training.places import MicrobatchPlace, Places


@pytest.fixture
def places() -> Iterator[Places]:
    made = Places.make(num_ranks=3, num_microbatches=4, batch_size=64)
    yield made
    made.close()


@pytest.fixture
def deadly(places: Places) -> DeadlyMicrobatches:
    return DeadlyMicrobatches(places)


def died(rank: int, number: int = signal.SIGSEGV, step: int = 5, index: int = 2, **how: Any) -> RankEnd:
    """At a microbatch that it began just now."""
    place = MicrobatchPlace(step=step, index=index, rows=(7, 3, 11), began_at=time.monotonic())
    values: dict[str, Any] = {"place": place, **how}
    return RankEnd(rank=rank, pid=100 + rank, host="here", signal=number, **values)


def test_two_ranks_that_break_at_the_same_microbatch_prove_it_deadly(deadly: DeadlyMicrobatches) -> None:
    assert deadly.find(died(1)) is None
    words = deadly.find(died(0, signal.SIGBUS))
    assert words is not None and words.startswith(
        "Microbatch 2 of the step after step 5 ended each rank that computed it: rank 1 (SIGSEGV), then rank 0 "
        "(SIGBUS). It has the rows 7, 3, 11 of the training split."
    )
    assert "leave them out of the data and begin a new run" in words


def test_two_ranks_for_which_there_was_no_memory_do_so_too(deadly: DeadlyMicrobatches) -> None:
    assert deadly.find(died(1, signal.SIGKILL, is_out_of_memory=True)) is None
    words = deadly.find(died(1, signal.SIGKILL, is_out_of_memory=True))
    assert words is not None and "rank 1 (no memory left), then rank 1 (no memory left)" in words


def test_of_kills_that_somebody_may_have_sent_it_takes_three(deadly: DeadlyMicrobatches) -> None:
    assert deadly.find(died(0, signal.SIGKILL)) is None
    assert deadly.find(died(1)) is None
    words = deadly.find(died(2, signal.SIGKILL))
    assert words is not None and "rank 0 (SIGKILL), then rank 1 (SIGSEGV), then rank 2 (SIGKILL)" in words


def test_deaths_at_others_prove_nothing_of_one(deadly: DeadlyMicrobatches) -> None:
    for end in (died(0), died(1, index=3), died(2, step=6), died(1, place=None), died(2, place=None)):
        assert deadly.find(end) is None


def test_who_began_it_before_another_one_died_of_it_proves_nothing(deadly: DeadlyMicrobatches) -> None:
    second = died(1)
    assert deadly.find(died(0)) is None
    assert deadly.find(second) is None
    assert deadly.find(died(2)) is not None


def test_a_microbatch_that_one_rank_has_computed_is_not_deadly(deadly: DeadlyMicrobatches, places: Places) -> None:
    assert deadly.find(died(0)) is None
    with places.of(1, 0).computing(5, 2, np.array([7, 3, 11])):
        pass
    assert deadly.find(died(2)) is None
    assert deadly.find(died(0)) is None


def test_deaths_at_steps_that_were_made_long_ago_are_forgotten(deadly: DeadlyMicrobatches) -> None:
    for step in (5, 6, 9):
        assert deadly.find(died(0, step=step)) is None
    assert deadly.find(died(1, step=5)) is None
    assert deadly.find(died(1, step=9)) is not None


def test_of_many_rows_the_first_are_named(deadly: DeadlyMicrobatches) -> None:
    def of_many() -> MicrobatchPlace:
        return MicrobatchPlace(step=5, index=2, rows=tuple(range(1_024)), began_at=time.monotonic())

    deadly.find(died(0, place=of_many()))
    words = deadly.find(died(1, place=of_many()))
    assert words is not None
    assert f", {MOST_ROWS - 1} and 1,004 more of the training split" in words
