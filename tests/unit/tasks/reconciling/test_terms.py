"""Which of two reconcilers acts for a store, over a real folder; only the clock is made up."""

import shutil

import pytest

from storage.errors import StoreUnavailableError
from storage.objects.local_store import LocalStore
from tasks.reconciling.terms import BEATS, TERMS, Leadership
from tests.helpers.cut_off_stores import ProcessGoneError, StoreCutOff, StoreLosingAnswers


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def pass_minute(clock: Clock, *standing: Leadership) -> list[list[bool]]:
    """Looks every 15 s for a minute; for each, who acts."""
    answers = []
    for _ in range(4):
        clock.now += 15
        answers.append([one.stand() for one in standing])
    return answers


def test_of_two_the_first_acts_as_long_as_it_beats(store: LocalStore, clock: Clock) -> None:
    first, second = Leadership(store, "a", clock), Leadership(store, "b", clock)
    assert (first.stand(), second.stand()) == (True, False)
    assert pass_minute(clock, first, second) == [[True, False]] * 4
    assert [key for key in store.list_keys(TERMS)] == [f"{TERMS}000001.json"]


def test_the_second_takes_over_from_one_that_stands_still_which_then_steps_down(
    store: LocalStore, clock: Clock
) -> None:
    first, second = Leadership(store, "a", clock), Leadership(store, "b", clock)
    assert (first.stand(), second.stand()) == (True, False)
    assert pass_minute(clock, second) == [[False], [False], [False], [True]]
    assert not first.still_leads() and second.still_leads()
    assert (first.stand(), second.stand()) == (False, True)


def test_who_ends_in_order_is_followed_at_once(store: LocalStore, clock: Clock) -> None:
    first, second = Leadership(store, "a", clock), Leadership(store, "b", clock)
    assert (first.stand(), second.stand()) == (True, False)
    first.resign()
    assert second.stand() and second.term == 2


@pytest.mark.parametrize("at", [1, 2])
def test_of_one_that_dies_between_its_writes_the_term_is_taken_over(store: LocalStore, clock: Clock, at: int) -> None:
    """Before its term is put, and between that and its first beat."""
    writes = {1: "write_if_absent", 2: "write"}
    dying = Leadership(StoreCutOff(store, 1, ProcessGoneError(), only=writes[at]), "a", clock)
    with pytest.raises(ProcessGoneError):
        dying.stand()
    second = Leadership(store, "b", clock)
    assert second.stand() is (at == 1)
    assert pass_minute(clock, second)[-1] == [True]
    assert second.term == at


def test_a_term_whose_answer_was_lost_is_followed_by_the_next(store: LocalStore, clock: Clock) -> None:
    losing = Leadership(StoreLosingAnswers(store, 1), "a", clock)
    with pytest.raises(StoreUnavailableError):
        losing.stand()
    losing.forget_silence()
    assert not losing.stand()
    assert pass_minute(clock, losing)[-1] == [True]
    assert losing.term == 2


def test_a_store_without_the_term_that_was_put_in_it_is_away(store: LocalStore, clock: Clock) -> None:
    leader = Leadership(store, "a", clock)
    assert leader.stand()
    shutil.rmtree(store.root)  # as where its file system is not mounted
    with pytest.raises(StoreUnavailableError, match="not mounted"):
        leader.stand()
    assert not store.root.exists()


def test_a_beat_that_cannot_be_read_stands_still(store: LocalStore, clock: Clock) -> None:
    assert Leadership(store, "a", clock).stand()
    store.write(f"{BEATS}000001.json", b"[]")
    second = Leadership(store, "b", clock)
    assert not second.stand()
    assert pass_minute(clock, second)[-1] == [True]
