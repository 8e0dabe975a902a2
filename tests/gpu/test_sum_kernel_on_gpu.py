"""On a GPU one kernel makes what torch's operators make in thirteen passes: the same integers, counts and largest."""

import pytest
import torch
from torch import Tensor

from training.gradients import fixed_point
from training.gradients.fixed_point import NUM_TALLIES, FixedPoint
from training.optim.adamw import AdamW
from training.optim.kernels import Group
from training.optim.sgd import SGD

# Ties to even, values that are no normal numbers, the ends of the range, and what is outside of it.
SPECIAL = [0.0, -0.0, 1e-40, -1e-44, 2.0**-42, 3 * 2.0**-42, -(2.0**-42), -5 * 2.0**-42, 2.0**16, -(2.0**16), 2.0**17]


@pytest.mark.parametrize("num_values", [1, 16, 4096, 3_000_017])
@pytest.mark.parametrize("last", [0.0, float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("loss_scale", [1.0, 2.0**16, 2.0**-20])
def test_the_kernel_gives_what_the_operators_give(
    num_values: int, last: float, loss_scale: float, gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(num_values)
    exponents = torch.randint(-60, 16, (num_values,), generator=generator)
    values = torch.randn(num_values, generator=generator) * torch.exp2(exponents.float())
    values[: len(SPECIAL)] = torch.tensor(SPECIAL)[:num_values]
    values *= loss_scale
    values[-1] = last
    kernel = add_twice(values.to(gpu), loss_scale)
    monkeypatch.setattr(fixed_point, "_gpu_kernel", lambda: None)
    operators, on_cpu = add_twice(values.to(gpu), loss_scale), add_twice(values, loss_scale)
    num_finite = num_values if torch.isfinite(values[-1]) else num_values - 1  # infinity is no integer in particular
    for found in (operators, on_cpu):
        inside = slice(0, num_finite)
        assert torch.equal(kernel[0][inside], found[0][inside])
        assert kernel[1] == found[1] and str(kernel[2]) == str(found[2])


def add_twice(values: Tensor, loss_scale: float) -> tuple[Tensor, list[int], float]:
    total = torch.zeros(len(values), dtype=torch.int64, device=values.device)
    tallies = torch.zeros(NUM_TALLIES, dtype=torch.int64, device=values.device)
    largest = torch.zeros((), device=values.device)
    numbers = FixedPoint(32)
    for _ in range(2):
        numbers.add_to(total, values.clone(), tallies, largest, loss_scale)
    numbers.count_outside(tallies, largest, loss_scale)
    return total.cpu(), tallies.tolist(), float(largest)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "nesterov"])
def test_weights_and_state_are_those_of_torchs_fused_optimizer(optimizer: str, gpu: torch.device) -> None:
    torch.manual_seed(0)
    shapes = [(300, 64), (64,), (7,), (64, 128)]
    ours = [torch.nn.Parameter(torch.randn(shape, device=gpu)) for shape in shapes]
    theirs = [torch.nn.Parameter(parameter.detach().clone()) for parameter in ours]
    groups = [Group(params=ours, weight_decay=0.01, rate_factor=1.0)]
    found: torch.optim.Optimizer
    expected: torch.optim.Optimizer
    if optimizer == "adamw":
        found = AdamW(groups, (0.9, 0.98))
        expected = torch.optim.AdamW(theirs, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.01, fused=True)
    else:
        is_nesterov = optimizer == "nesterov"
        found = SGD(groups, 0.9, is_nesterov)
        expected = torch.optim.SGD(theirs, momentum=0.9, nesterov=is_nesterov, weight_decay=0.01, fused=True)
    for step in range(3):
        for group in (*found.param_groups, *expected.param_groups):
            group["lr"] = 1e-3 / (step + 1)
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        found.step()
        expected.step()
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)
        assert found.state[a].keys() == expected.state[b].keys()
        for kind, value in found.state[a].items():
            assert torch.equal(value, expected.state[b][kind]), kind
