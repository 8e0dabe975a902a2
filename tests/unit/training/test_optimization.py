"""Each optimizer has the bits of torch's own, each schedule is a function of the step; overflow without end is noticed.

How the state of an optimizer goes out and comes back: `test_optimizer_state.py`.
"""

from typing import Any, get_args

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from storage.runs.run_state import Divergence
from training.configuration import ONLY_WITH, TrainConfig
from training.optim.optimization import Optimization, learning_rate
from training.optim.optimizer import OPTIMIZERS

CPU = torch.device("cpu")


def test_a_step_gives_the_norm_that_the_whole_gradient_had_before_it_was_clipped() -> None:
    model = nn.Linear(3, 2)
    optimization = Optimization(model, TrainConfig(steps=10, clip_norm=0.001), CPU)
    optimization.backward(model(torch.ones(2, 3)).sum())
    assert optimization.step(0).item() == pytest.approx((8 * 2.0**2) ** 0.5)  # six weights and two biases, 2 each


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


OF_TORCH: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any], dict[str, Any]]] = {
    "adamw": (torch.optim.AdamW, {}, {"betas": (0.9, 0.98)}),
    "sgd": (torch.optim.SGD, {}, {"momentum": 0.9}),
    "nesterov": (torch.optim.SGD, {"nesterov": True, "momentum": 0.8}, {"nesterov": True, "momentum": 0.8}),
    "without momentum": (torch.optim.SGD, {"momentum": 0.0}, {}),
}


@pytest.mark.parametrize("clip_norm", [1e-3, 1e9])
@pytest.mark.parametrize("optimizer", OF_TORCH)
def test_weights_and_state_have_the_bits_that_torchs_own_class_gives_them(optimizer: str, clip_norm: float) -> None:
    of_torch, settings, options = OF_TORCH[optimizer]
    torch.manual_seed(0)
    model, reference = nn.Linear(30, 20), nn.Linear(30, 20)
    reference.load_state_dict(model.state_dict())
    name = "adamw" if of_torch is torch.optim.AdamW else "sgd"
    config = TrainConfig.model_validate({"steps": 10, "optimizer": name, "clip_norm": clip_norm, **settings})
    optimization = Optimization(model, config, CPU)
    groups = [
        {"params": [reference.weight], "weight_decay": config.weight_decay},
        {"params": [reference.bias], "weight_decay": 0.0},
    ]
    torchs = of_torch(groups, **{"fused": True, **options})
    for step in range(6):
        data = torch.randn(5, 30)
        optimization.backward(model(data).square().sum())
        reference(data).square().sum().backward()
        if step in (0, 3):  # a parameter without a gradient stays as it is
            model.bias.grad = reference.bias.grad = None
        optimization.step(step)
        nn.utils.clip_grad_norm_(reference.parameters(), clip_norm)
        for group in torchs.param_groups:
            group["lr"] = learning_rate(config, step)
        torchs.step()
        torchs.zero_grad()
    assert torch.equal(model.weight, reference.weight) and torch.equal(model.bias, reference.bias)
    expected = {
        f"{kind}.{name}": tensor
        for name, parameter in reference.named_parameters()
        for kind, tensor in torchs.state[parameter].items()
    }
    found = optimization.tensors()
    assert found.keys() == expected.keys() == optimization.expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("cosine", [0.5, 1.0, 1.0, 0.86819, 0.55, 0.23180]),
        ("linear", [0.5, 1.0, 1.0, 0.775, 0.55, 0.325]),
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_after_the_warm_up_the_learning_rate_falls_as_the_schedule_says(schedule: str, expected: list[float]) -> None:
    settings = {"steps": 6, "warmup_fraction": 1 / 3, "learning_rate": 1.0, "schedule": schedule}
    final = {} if schedule == "constant" else {"final_learning_rate_fraction": 0.1}
    config = TrainConfig.model_validate(settings | final)
    assert [learning_rate(config, step) for step in range(6)] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"optimizer": "sgd", "adam_beta2": 0.98},
            r"adam_beta2 goes with optimizer = 'adamw' alone: optimizer is 'sgd' and adam_beta2 is 0\.98\. Take "
            r"adam_beta2 out, or set optimizer to 'adamw'",
        ),
        ({"momentum": 0.5}, r"momentum goes with optimizer = 'sgd' alone: optimizer is 'adamw' \(the default\)"),
        ({"schedule": "constant", "final_learning_rate_fraction": 0.1}, r"set schedule to 'cosine' or 'linear'"),
        ({"optimizer": "sgd", "nesterov": True, "momentum": 0}, r"nesterov needs momentum: .* Set momentum above 0"),
    ],
)
def test_a_field_of_another_choice_is_refused_in_one_sentence(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        TrainConfig.model_validate(settings)
    assert caught.value.error_count() == 1


def test_each_optimizer_that_may_be_configured_can_be_made() -> None:
    fields = TrainConfig.model_fields
    assert set(get_args(fields["optimizer"].annotation)) == OPTIMIZERS.keys()
    for name, (choice, values) in ONLY_WITH.items():
        assert name in fields and set(values) < set(get_args(fields[choice].annotation))


@pytest.mark.parametrize("settings", [{}, {"optimizer": "sgd", "momentum": 0.5}, {"schedule": "constant"}])
def test_what_means_nothing_is_not_kept_so_what_was_kept_is_read_again(settings: dict[str, Any]) -> None:
    config = TrainConfig.model_validate(settings)
    kept = config.model_dump(mode="json")
    assert ("adam_beta1" in kept, "momentum" in kept) == (config.optimizer == "adamw", config.optimizer == "sgd")
    assert ("final_learning_rate_fraction" in kept) == (config.schedule != "constant")
    assert TrainConfig.model_validate(kept) == config == TrainConfig.model_validate_json(config.model_dump_json())


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_parameter_that_lies_transposed_in_memory_goes_on_as_if_nothing_had_been_restored(optimizer: str) -> None:
    def make() -> tuple[nn.Parameter, Optimization]:
        module = nn.Module()
        module.weight = nn.Parameter(torch.arange(12.0).view(3, 4).t())
        return module.weight, Optimization(
            module, TrainConfig.model_validate({"steps": 9, "optimizer": optimizer}), CPU
        )

    (straight, whole), (resumed, restored) = make(), make()
    for step in range(4):
        if step == 2:
            with torch.no_grad():
                resumed.copy_(straight)
            restored.load_tensors(
                {name: t.clone(memory_format=torch.contiguous_format) for name, t in whole.tensors().items()}
            )
        trained = [(straight, whole)] if step < 2 else [(straight, whole), (resumed, restored)]
        for parameter, optimization in trained:
            optimization.backward((parameter * torch.arange(12.0).view(4, 3)).square().sum())
            optimization.step(step)
    assert torch.equal(straight, resumed)
