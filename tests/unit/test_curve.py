"""The loss curve and the learning rate do not depend on interruptions."""

import json

import pytest
import torch

from training.configuration import TrainConfig
from training.curve import LossCurve, NonFiniteLossError
from training.optimization import learning_rate
from training.world import World

ALONE = World(0, 1, 0)


def losses(count: int) -> list[torch.Tensor]:
    return [torch.tensor(1 / (step + 3)) for step in range(count)]


@pytest.mark.parametrize("interrupted_at", range(1, 12))
def test_a_curve_interrupted_anywhere_is_the_curve_of_one_go(interrupted_at: int) -> None:
    whole = LossCurve(ALONE, every_steps=4)
    first, second = LossCurve(ALONE, every_steps=4), LossCurve(ALONE, every_steps=4)
    for index, loss in enumerate(losses(12)):
        whole.record(index + 1, loss, 0.1)
        (first if index < interrupted_at else second).record(index + 1, loss, 0.1)
        if index + 1 == interrupted_at:
            first.collect(index + 1)
            second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.points == whole.points
    assert [step for step, _, _ in whole.points] == [4, 8, 12]


def test_a_loss_that_is_not_finite_ends_the_run_with_what_to_do() -> None:
    curve = LossCurve(ALONE, every_steps=2)
    curve.record(1, torch.tensor(1.0), 0.1)
    with pytest.raises(NonFiniteLossError, match=r"nan at or before step 2.*learning_rate"):
        curve.record(2, torch.tensor(float("nan")), 0.1)


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
