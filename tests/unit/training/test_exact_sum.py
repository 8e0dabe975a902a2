"""The exact sum on one rank: microbatches in any order, parameters that not all of them use, and a range that fits."""

import math
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn

from storage.errors import ConfigurationError
from training.configuration import TrainConfig
from training.gradients.exact_sum import ExactSum
from training.optim.optimization import Optimization
from training.world import World

ALONE = World(0, 1, 0, 1)
NUM_MICROBATCHES = 4
# Slopes that no float sum adds up to the same in every order.
SLOPES = (1e-3, 3e4, 0.1, 7e-6)


class Branches(nn.Module):
    """A microbatch is the slopes of the parameters that it uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Parameter(torch.ones(3)) for _ in range(3))

    def forward(self, microbatch: dict[str, float]) -> Tensor:
        return torch.stack([slope * self.get_parameter(name).sum() for name, slope in microbatch.items()]).sum()


class Case:
    """A model and the exact sum of its gradients."""

    def __init__(self) -> None:
        self.model = Branches()
        self.optimization = Optimization(self.model, TrainConfig(steps=1000), torch.device("cpu"))
        self.sum = ExactSum(self.model, NUM_MICROBATCHES, self.optimization, ALONE)
        self.num_attempts = 0

    def add(self, microbatches: Iterable[dict[str, float]]) -> dict[str, list[float]]:
        """The gradients that these microbatches add up to."""
        computed = list(microbatches)
        for _ in self.sum.attempts():
            self.num_attempts += 1
            for index, microbatch in enumerate(computed):
                with self.sum.microbatch(is_last=index == len(computed) - 1):
                    self.optimization.backward(self.sum.parallel(microbatch))
        return {name: gradient_of(parameter).tolist() for name, parameter in self.model.named_parameters()}


def gradient_of(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


@pytest.mark.parametrize("turned_by", range(NUM_MICROBATCHES))
def test_a_parameter_that_some_microbatches_do_not_use_has_the_sum_of_the_others(turned_by: int) -> None:
    """Whether the microbatch that does not use it is the first, one between, or the last."""
    microbatches = [{"first": slope, "second": 2 * slope} for slope in SLOPES[:-1]] + [{"second": SLOPES[-1]}]
    turned = microbatches[turned_by:] + microbatches[:turned_by]
    found, expected = Case().add(turned), Case().add(microbatches)
    assert found == expected
    assert found["first"] == [torch.tensor(sum(SLOPES[:-1])).item()] * 3
    assert found["third"] == [0.0] * 3


def test_gradients_of_one_step_do_not_reach_the_next() -> None:
    case = Case()
    case.add([{"first": 1.0, "second": 1.0}, {"third": 2.0}])
    case.optimization.step(0)
    assert case.add([{"second": 4.0}]) == {"first": [0.0] * 3, "second": [4.0] * 3, "third": [0.0] * 3}


def test_what_is_in_the_usual_range_is_computed_once() -> None:
    case = Case()
    case.add([{"first": 2.0**16}, {"first": -(2.0**16)}])
    assert case.num_attempts == 1


@pytest.mark.parametrize("large", [1e5, -1e5, 1e20, 1e36])
def test_what_is_outside_of_it_is_computed_again_and_added_as_exactly(large: float) -> None:
    """A large value that others take away again leaves what a float sum would have lost."""
    case = Case()
    small = abs(large) * 2.0**-40
    found = case.add([{"first": large, "second": 1.0}, {"first": small, "second": 1.0}, {"first": -large}])
    assert case.num_attempts == 2
    assert found["first"] == pytest.approx([small] * 3, rel=1e-3)
    assert found["second"] == pytest.approx([2.0] * 3, rel=abs(large) * 2.0**-50)
    assert case.sum.take_tallies(torch.ones(()))[0] == 0
    case.optimization.step(0)
    assert case.add([{"first": 0.5}])["first"] == [0.5] * 3
    assert case.num_attempts == 3


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
def test_what_is_not_finite_is_not_tried_again_and_never_read_as_a_number(bad: float) -> None:
    case = Case()
    found = case.add([{"first": 1.0}, {"first": bad}, {"first": 1.0}])
    assert case.num_attempts == 1
    assert all(map(math.isnan, found["first"]))
    assert case.sum.take_tallies(torch.ones(()))[0] == 1


def test_a_gradient_that_comes_in_several_parts_is_refused_by_name() -> None:
    """Rounding each part would depend on how many there are; what came late would be lost."""
    case = Case()
    refused = pytest.raises(ConfigurationError, match=r"parameter '(first|second|third)' was computed in several parts")
    with refused, case.sum.microbatch(is_last=False):
        for _ in range(2):
            case.model({"first": 1.0, "second": 1.0, "third": 1.0}).backward()
