"""A loss that leaps and stays up is found at its step, however the run was cut; noise and hard batches are not."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from training.configuration import DivergenceConfig
from training.metrics.spikes import LEAST_SIGMA_SHARE, SpikeWatch, find_spike, level_of
from training.optim.divergence import DivergedError

DEFAULT = DivergenceConfig()
SMALL = DivergenceConfig(window_steps=20, consecutive_steps=3, rollback_steps=5)
Losses = NDArray[np.float64]


def found_at(losses: Losses, config: DivergenceConfig = DEFAULT, cut_at: int = -1) -> int | None:
    """The step, from 1, at which a spike is found; with the watch saved and loaded again before step `cut_at`."""
    watch = SpikeWatch(config)
    for step, loss in enumerate(losses.tolist(), start=1):
        if step == cut_at:
            state = json.loads(json.dumps(watch.state_dict()))
            watch = SpikeWatch(config)
            watch.load_state_dict(state)
        try:
            watch.look(step, loss, first_loss=float(losses[0]))
        except DivergedError as error:
            assert error.evidence.step == step
            return step
    return None


def falling(num_steps: int, seed: int, start: float = 2.4, end: float = 0.3, noise: float = 0.1) -> Losses:
    """A loss that falls to `end`, with normal noise in proportion to it."""
    shape = end + (start - end) * np.exp(-5 * np.arange(num_steps) / num_steps)
    normal: Losses = shape * np.random.default_rng(seed).normal(1, noise, num_steps)
    return normal


def with_heavy_tails(num_steps: int, seed: int) -> Losses:
    """Noise of Student's t with two degrees of freedom, whose variance is infinite: batches may be far off."""
    shape = falling(num_steps, seed, noise=0)
    return np.abs(shape * (1 + 0.15 * np.random.default_rng(seed).standard_t(2, num_steps)))


def with_warm_up(num_steps: int, seed: int) -> Losses:
    """A loss that rises to a half more while the learning rate does, then falls."""
    losses = falling(num_steps, seed)
    bump = 1 + 0.5 * np.sin(np.pi * np.minimum(np.arange(num_steps) / (0.4 * num_steps), 1)) ** 2
    return losses * bump


def learnt_by_heart(num_steps: int, seed: int) -> Losses:
    """Losses next to nothing, over many orders of magnitude."""
    powers = np.random.default_rng(seed).normal(-9, 1.5, num_steps)
    return np.concatenate([falling(100, seed), np.exp(powers)[: num_steps - 100]])


def with_hard_batches(num_steps: int, seed: int) -> Losses:
    """One batch in thirty costs ten times as much."""
    is_hard = np.random.default_rng(seed + 1).random(num_steps) < 1 / 30
    return np.where(is_hard, 10.0, 1.0) * falling(num_steps, seed)


def with_epochs(num_steps: int, seed: int) -> Losses:
    """A loss that falls by a quarter at the beginning of each epoch and creeps up again within it."""
    return falling(num_steps, seed) * (1 - 0.25 * (1 - np.arange(num_steps) % 150 / 150))


@pytest.mark.parametrize(
    "curve",
    [falling, with_heavy_tails, with_warm_up, learnt_by_heart, with_hard_batches, with_epochs],
)
def test_a_curve_without_divergence_raises_no_alarm(curve: Callable[[int, int], Losses]) -> None:
    assert [found_at(curve(600, seed)) for seed in range(4)] == [None] * 4


@pytest.mark.parametrize("curve", [with_heavy_tails, with_hard_batches])
def test_it_is_the_steps_in_a_row_that_tell_a_spike_from_noise(curve: Callable[[int, int], Losses]) -> None:
    two_in_a_row = DivergenceConfig(consecutive_steps=2)
    assert any(found_at(curve(2000, seed), two_in_a_row) is not None for seed in range(8))


@pytest.mark.parametrize("height", [1.0, 5.0, 1e6])
@pytest.mark.parametrize("begin", [150, 430])
def test_a_loss_that_leaps_and_stays_up_is_found_at_the_last_of_the_consecutive_steps(
    begin: int, height: float
) -> None:
    losses = falling(500, seed=3, end=0.3, noise=0.05)
    losses[begin:] = 2.4 + height
    assert found_at(losses) == begin + DEFAULT.consecutive_steps


def test_one_hard_batch_less_than_asked_for_is_no_spike() -> None:
    losses = falling(500, seed=3)
    losses[300 : 300 + DEFAULT.consecutive_steps - 1] = 50.0
    assert found_at(losses) is None
    losses[300 + DEFAULT.consecutive_steps - 1] = 50.0
    assert found_at(losses) == 300 + DEFAULT.consecutive_steps


def test_before_the_window_is_full_nothing_is_a_spike() -> None:
    losses = np.full(DEFAULT.window_steps + DEFAULT.consecutive_steps - 1, 0.5)
    losses[-DEFAULT.consecutive_steps :] = 100.0
    assert found_at(losses) is None
    assert found_at(np.concatenate([[0.5], losses])) == len(losses) + 1


def test_spikes_can_be_switched_off() -> None:
    losses = np.concatenate([np.full(200, 0.5), np.full(50, 100.0)])
    assert found_at(losses) == 200 + DEFAULT.consecutive_steps
    assert found_at(losses, DivergenceConfig(spikes=False)) is None


@given(st.lists(st.sampled_from([0.4, 0.5, 0.6, 5.0, 9.0]), min_size=40, max_size=80), st.integers(1, 80))
@settings(max_examples=40, deadline=None)
def test_an_interruption_anywhere_changes_nothing_in_what_is_found_and_where(losses: list[float], cut_at: int) -> None:
    assert found_at(np.array(losses), SMALL, cut_at) == found_at(np.array(losses), SMALL)


@given(st.lists(st.floats(0.1, 10), min_size=SMALL.window_steps + SMALL.consecutive_steps, max_size=40))
@settings(deadline=None)
def test_what_lies_before_the_window_plays_no_part(losses: list[float]) -> None:
    needed = losses[-SMALL.window_steps - SMALL.consecutive_steps :]
    assert find_spike(losses, 1.0, SMALL) == find_spike(needed, 1.0, SMALL)


@given(st.lists(st.sampled_from([0.4, 0.5, 0.6, 0.7, 5.0]), min_size=23, max_size=23), st.sampled_from([0.0, 2.0]))
@settings(max_examples=200, deadline=None)
def test_a_look_that_ends_early_finds_what_the_level_says(losses: list[float], first_loss: float) -> None:
    level = level_of(losses[:20], first_loss, SMALL.spike_sigmas)
    assert find_spike(losses, first_loss, SMALL) == (level if min(losses[20:]) > level.threshold else None)


def test_the_level_is_that_of_the_textbook() -> None:
    window = np.random.default_rng(0).normal(10, 2, 100_001)
    level = level_of(window.tolist(), first_loss=10, sigmas=6)
    assert level.median == pytest.approx(10, abs=0.05)
    assert level.sigma == pytest.approx(2, rel=0.02)
    assert level.threshold == level.median + 6 * level.sigma


def test_losses_without_any_spread_are_held_against_the_first_one() -> None:
    level = level_of([1e-6] * 50, first_loss=2.0, sigmas=6)
    assert level.sigma == 2.0 * LEAST_SIGMA_SHARE


def test_the_evidence_is_told_in_words_and_in_fields() -> None:
    losses = np.concatenate([np.tile([0.4, 0.5, 0.6], 40), np.full(10, 7.0)])
    watch = SpikeWatch(DEFAULT)
    with pytest.raises(DivergedError) as raised:
        for step, loss in enumerate(losses.tolist(), start=1):
            watch.look(step, loss, first_loss=0.5)
    evidence: dict[str, Any] = raised.value.evidence.model_dump()
    assert evidence == {
        "kind": "spike", "step": 130, "value": 7.0, "median": 0.5, "sigma": pytest.approx(0.14826),
        "threshold": pytest.approx(0.5 + 6 * 0.14826),
    }  # fmt: skip
    assert str(raised.value) == (
        "The loss rose suddenly at step 121 and stayed high up to step 130, where it is 7: "
        "above 1.39 in each of 10 steps, which is "
        "6 robust standard deviations of 0.148 above the median of the 100 steps before, 0.5."
    )
    assert math.isfinite(evidence["value"])
