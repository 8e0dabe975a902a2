"""The optimizer's state goes out and comes back under the names of the parameters; overflow without end is noticed."""

import pytest
import torch
from torch import nn

from storage.runs.run_state import Divergence
from training.configuration import TrainConfig
from training.optim.optimization import Optimization, learning_rate

CPU = torch.device("cpu")


def take_steps(optimization: Optimization, model: nn.Module, count: int) -> None:
    for step in range(count):
        optimization.backward(model(torch.ones(2, 3)).sum())
        optimization.step(step)


def test_moments_come_back_to_the_bit() -> None:
    torch.manual_seed(0)
    model, config = nn.Linear(3, 2), TrainConfig(steps=10)
    optimization = Optimization(model, config, CPU)
    take_steps(optimization, model, 3)
    other_model = nn.Linear(3, 2)
    other_model.load_state_dict(model.state_dict())
    restored = Optimization(other_model, config, CPU)
    restored.load_tensors({name: tensor.clone() for name, tensor in optimization.tensors().items()})
    take_steps(optimization, model, 2)
    take_steps(restored, other_model, 2)
    assert torch.equal(model.weight, other_model.weight)
    assert set(optimization.tensors()) >= {"exp_avg.weight", "exp_avg_sq.bias", "step.weight"}


def test_a_step_gives_the_norm_that_the_whole_gradient_had_before_it_was_clipped() -> None:
    model = nn.Linear(3, 2)
    optimization = Optimization(model, TrainConfig(steps=10, clip_norm=0.001), CPU)
    optimization.backward(model(torch.ones(2, 3)).sum())
    assert optimization.step(0).item() == pytest.approx((8 * 2.0**2) ** 0.5)  # six weights and two biases, 2 each


def test_a_state_from_before_the_first_change_of_the_weights_is_no_error() -> None:
    model, config = nn.Linear(3, 2), TrainConfig(steps=10, precision="fp16")
    saved = Optimization(model, config, CPU).tensors()
    assert saved == {}
    restored = Optimization(model, config, CPU)
    restored.load_tensors(saved)
    assert restored.tensors() == {}


def test_a_state_without_some_parameter_is_an_error() -> None:
    model, config = nn.Linear(3, 2), TrainConfig(steps=10)
    optimization = Optimization(model, config, CPU)
    take_steps(optimization, model, 1)
    incomplete = {name: tensor for name, tensor in optimization.tensors().items() if "bias" not in name}
    restored = Optimization(model, config, CPU)
    restored.load_tensors(incomplete)
    with pytest.raises(KeyError, match=r"step\.bias"):
        restored.require_complete()


def test_in_fp16_steps_that_all_overflow_are_noticed_and_one_is_not() -> None:
    model = nn.Linear(2, 1)
    before = model.weight.detach().clone()
    optimization = Optimization(model, TrainConfig(steps=1000, precision="fp16"), CPU)
    exhausted = []
    for step in range(60):
        optimization.backward(model(torch.ones(1, 2)).sum() * torch.inf)
        optimization.step(step)
        exhausted.append(optimization.is_exhausted)
    assert 50 <= exhausted.index(True) < 60
    assert torch.equal(model.weight, before)
    error = optimization.exhausted(52)
    assert str(error).startswith("At step 52 the gradient was not finite, as at many steps before it")
    assert error.evidence == Divergence(kind="loss_scale", step=52, value=optimization.loss_scale)


@pytest.mark.parametrize("clip_norm", [1e-3, 1e9])
def test_weights_and_moments_have_the_bits_that_torchs_own_class_gives_them(clip_norm: float) -> None:
    torch.manual_seed(0)
    model, reference = nn.Linear(30, 20), nn.Linear(30, 20)
    reference.load_state_dict(model.state_dict())
    config = TrainConfig(steps=10, clip_norm=clip_norm)
    optimization = Optimization(model, config, CPU)
    groups = [
        {"params": [reference.weight], "weight_decay": config.weight_decay},
        {"params": [reference.bias], "weight_decay": 0.0},
    ]
    torchs = torch.optim.AdamW(groups, betas=(config.adam_beta1, config.adam_beta2))
    for step in range(6):
        data = torch.randn(5, 30)
        optimization.backward(model(data).square().sum())
        reference(data).square().sum().backward()
        if step == 3:  # a parameter without a gradient stays as it is
            model.bias.grad = reference.bias.grad = None
        optimization.step(step)
        nn.utils.clip_grad_norm_(reference.parameters(), clip_norm)
        for group in torchs.param_groups:
            group["lr"] = learning_rate(config, step)
        torchs.step()
        torchs.zero_grad()
    assert torch.equal(model.weight, reference.weight) and torch.equal(model.bias, reference.bias)
    for name, parameter in reference.named_parameters():
        for kind, tensor in torchs.state[parameter].items():
            assert torch.equal(optimization.tensors()[f"{kind}.{name}"], tensor)
