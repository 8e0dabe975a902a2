"""When something counts as silent: a pure function of looks, by the watcher's clock."""

import pytest

from tasks.reconciling.silence import Look, Silence, follow


def at(seconds: float, sign: str | None = "beat 7", lasts: float = 0.0) -> Look:
    return Look(seconds, seconds + lasts, sign)


def is_silent(*looks: Look) -> bool:
    silence: Silence | None = None
    for look in looks:
        silence = follow(silence, look)
    return silence is not None and silence.is_long


def test_a_sign_that_stands_still_for_a_minute_of_looks_is_silent() -> None:
    assert is_silent(at(0), at(15), at(30), at(45), at(60))
    assert not is_silent(at(0), at(15), at(30), at(45), at(59))


def test_any_other_sign_is_a_sign_of_life_whatever_it_says() -> None:
    assert not is_silent(at(0), at(30), at(45, "beat 3, of a clock ten minutes behind"), at(60), at(90))


def test_a_look_that_was_not_answered_begins_the_count_anew() -> None:
    assert not is_silent(at(0), at(30), at(45, None), at(60), at(90))
    assert is_silent(at(0), at(30), at(45, None), at(60), at(90), at(120))


def test_of_a_watcher_that_was_stopped_two_looks_are_not_enough() -> None:
    """Frozen together with the holder, both go on at one moment: the holder beats before the next look."""
    assert not is_silent(at(0), at(3600))
    assert not is_silent(at(0), at(3600), at(3610, "beat 8"))
    assert is_silent(at(0), at(3600), at(3630))


@pytest.mark.parametrize("lasts", [29.0, 31.0])
def test_the_time_that_a_look_takes_does_not_count(lasts: float) -> None:
    assert not is_silent(at(0, lasts=lasts), at(lasts, lasts=lasts), at(2 * lasts, lasts=lasts))
