"""The loss curve and the learning rate do not depend on interruptions; what is no number ends the run."""

import json
import math

import pytest
import torch

from storage.runs.run_state import Divergence
from tests.helpers.rollbacks import rollback_to
from training.configuration import DivergenceConfig, TrainConfig
from training.metrics.curve import LossCurve
from training.optim.divergence import DivergedError
from training.optim.optimization import learning_rate
from training.world import World

ALONE = World(0, 1, 0, 1)
SPIKES = DivergenceConfig(window_steps=20, consecutive_steps=3)


def make_curve(every_steps: int) -> LossCurve:
    return LossCurve(every_steps, SPIKES)


def figures(*losses: float, num_outside: int = 0, num_rounded_away: int = 0, norm: float = 1.0) -> torch.Tensor:
    """What a step of so many microbatches gives."""
    return torch.tensor([*losses, num_outside, num_rounded_away, norm], dtype=torch.float64)


def steps(count: int) -> list[torch.Tensor]:
    return [figures(1 / (step + 3), 1 / (step + 7), num_rounded_away=step, norm=step) for step in range(count)]


@pytest.mark.parametrize("interrupted_at", range(1, 12))
def test_a_curve_interrupted_anywhere_is_the_curve_of_one_go(interrupted_at: int) -> None:
    whole = make_curve(every_steps=4)
    first, second = make_curve(every_steps=4), make_curve(every_steps=4)
    for index, step in enumerate(steps(12)):
        whole.record(index + 1, step, 0.1)
        (first if index < interrupted_at else second).record(index + 1, step, 0.1)
        if index + 1 == interrupted_at:
            first.collect(index + 1)
            second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.points == whole.points
    assert second.norms == whole.norms == [(4, 3.0), (8, 7.0), (12, 11.0)]
    assert second.num_rounded_away == whole.num_rounded_away == sum(range(12))
    assert [step for step, _, _ in whole.points] == [4, 8, 12]


def test_a_point_is_the_mean_over_steps_of_the_sum_over_microbatches() -> None:
    curve = make_curve(every_steps=2)
    curve.record(1, figures(0.25, 0.5, 0.125), 0.1)
    curve.record(2, figures(1.0, 0.0, 0.125), 0.2)
    assert curve.points == [(2, 1.0, 0.2)]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_ends_the_segment_at_its_step(bad: float) -> None:
    curve = make_curve(every_steps=2)
    curve.record(1, figures(1.0, 1.0), 0.1)
    with pytest.raises(DivergedError, match=rf"loss became {bad} at step 2\.") as raised:
        curve.record(2, figures(1.0, bad), 0.1)
    assert raised.value.evidence == Divergence(kind="loss", step=2)


def test_a_gradient_that_the_sum_cannot_hold_ends_the_segment_at_its_step() -> None:
    curve = make_curve(every_steps=10)
    curve.record(1, figures(1.0, num_outside=1), 0.1)
    curve.record(2, figures(1.0), 0.1)
    with pytest.raises(DivergedError, match="At step 1 a microbatch's gradient was not finite") as raised:
        curve.collect(2)
    assert raised.value.evidence == Divergence(kind="gradient", step=1)


def test_before_a_divergence_is_raised_others_may_say_what_it_is() -> None:
    curve, asked = make_curve(every_steps=1), list[int]()
    curve.before_divergence = asked.append
    curve.record(1, figures(1.0), 0.1)
    assert asked == []
    with pytest.raises(DivergedError):
        curve.record(2, figures(math.nan), 0.1)
    assert asked == [2]


def test_what_went_wrong_first_is_named_and_not_what_followed_from_it() -> None:
    """A gradient that the sum cannot hold leaves weights that are no numbers, and so do all losses after it."""
    curve = make_curve(every_steps=10)
    curve.record(1, figures(1.0), 0.1)
    curve.record(2, figures(1.0, num_outside=1), 0.1)
    curve.record(3, figures(math.nan, num_outside=1), 0.1)
    with pytest.raises(DivergedError, match="At step 2 a microbatch's gradient was not finite"):
        curve.collect(3)


@pytest.mark.parametrize("every_steps", [1, 7, 10])
@pytest.mark.parametrize("looked_at", [None, *range(27, 33)])
def test_a_spike_is_found_at_the_same_step_whenever_losses_are_looked_at(
    every_steps: int, looked_at: int | None
) -> None:
    """Also if what follows from it is no number any more before anybody looks."""
    curve = make_curve(every_steps)

    def go_on() -> None:
        for step in range(1, 51):
            curve.record(step, figures(0.5 if step < 28 else math.nan if step == 31 else 9.0), 0.1)
            if step == looked_at:
                curve.collect(step)

    with pytest.raises(DivergedError) as raised:
        go_on()
    assert (raised.value.evidence.kind, raised.value.evidence.step) == ("spike", 30)


@pytest.mark.parametrize("interrupted_at", range(20, 31))
def test_an_interruption_does_not_hide_a_spike(interrupted_at: int) -> None:
    curve = make_curve(every_steps=4)
    with pytest.raises(DivergedError, match="stayed high up to step 30, where it is 9"):
        for step in range(1, 50):
            curve.record(step, figures(0.5 if step < 28 else 9.0), 0.1)
            if step == interrupted_at:
                curve.collect(step)
                resumed = make_curve(every_steps=4)
                resumed.load_state_dict(json.loads(json.dumps(curve.state_dict())))
                curve = resumed


def test_rollbacks_lower_the_learning_rate_from_their_resume_step_on() -> None:
    config = TrainConfig(steps=100)
    rollbacks = [rollback_to(30, factor=0.5), rollback_to(60, factor=0.25)]
    shares = [learning_rate(config, step, rollbacks) / learning_rate(config, step) for step in range(100)]
    assert shares == [1.0] * 30 + [0.5] * 30 + [0.25] * 40


def test_the_learning_rate_rises_and_falls_to_its_final_share() -> None:
    config = TrainConfig(steps=100, warmup_fraction=0.1, learning_rate=1.0, final_learning_rate_fraction=0.1)
    rates = [learning_rate(config, step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == pytest.approx(1.0)
    assert max(rates) == rates[9] or max(rates) == rates[10]
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[99] == pytest.approx(0.1, abs=0.01)


def test_a_run_of_one_step_has_a_learning_rate() -> None:
    assert learning_rate(TrainConfig(steps=1, warmup_fraction=1.0), 0) > 0
    assert learning_rate(TrainConfig(steps=1, warmup_fraction=0.0), 0) > 0
