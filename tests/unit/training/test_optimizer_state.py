"""Whatever an optimizer keeps goes into a checkpoint's files and comes back; what is another optimizer's does not."""

from typing import Any, cast

import pytest
import torch
from torch import nn

from storage.checkpoints.checkpoints import OPTIMIZER_STEM, CheckpointIndex, FoundCheckpoint
from storage.errors import IncompatibleRunError
from training.checkpointing.restoring import OptimizerLoader
from training.checkpointing.state_tensors import HostFile, StateTensors
from training.configuration import TrainConfig
from training.optim import optimizer as optimizers
from training.optim.optimization import Optimization
from training.trainer import Trainer

SGD: dict[str, Any] = {"optimizer": "sgd"}
OURS: dict[str, dict[str, Any]] = {
    "adamw": {}, "sgd": SGD, "nesterov": SGD | {"nesterov": True}, "sgd without momentum": SGD | {"momentum": 0},
}  # fmt: skip
# Of torch, to show that nothing here knows what is kept: per parameter, per row and column, counts, products.
OF_TORCH = (
    torch.optim.Adafactor, torch.optim.Adagrad, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RMSprop,
    torch.optim.Rprop,
)  # fmt: skip


class Case:
    """A model of matrices, vectors, a number and frozen weights, and its optimizer."""

    def __init__(self, **settings: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2), nn.Linear(2, 2))
        self.scale = nn.Parameter(torch.ones(()))
        self.model.register_parameter("scale", self.scale)
        self.model[1].requires_grad_(False)
        self.config = TrainConfig.model_validate({"steps": 100, "learning_rate": 0.01, **settings})
        self.optimization = Optimization(self.model, self.config, torch.device("cpu"))

    def take_steps(self, first: int, count: int) -> None:
        for step in range(first, first + count):
            data = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))
            loss = (self.model(data) * self.scale).square().sum()
            self.optimization.backward(loss)
            self.optimization.step(step)

    def files(self) -> list[HostFile]:
        """As a checkpoint has them."""
        state = StateTensors(cast(Trainer, self))
        return [HostFile(f).filled_from(state) for f in state.files if f.name.startswith(OPTIMIZER_STEM)]

    def found(self) -> FoundCheckpoint:
        index = CheckpointIndex(
            run="run", fence=1, step=3, cursor=3, dataset_digest="d", versions={}, files={},
            configuration={"train": self.config.model_dump(mode="json")},
        )  # fmt: skip
        return FoundCheckpoint("path", "digest", index)


def restore(saved: Case, into: Case) -> None:
    loader = OptimizerLoader(into.optimization, saved.found())
    for file in saved.files():
        loader.take_over(file.layout.name, file.data.clone())
    loader.require_fit()


def require_going_on(**settings: Any) -> Case:
    """A case that is restored after three steps goes on as the one that was not."""
    saved, other = Case(**settings), Case(**settings)
    saved.take_steps(0, 3)
    other.model.load_state_dict(saved.model.state_dict())
    restore(saved, other)
    for case in (saved, other):
        case.take_steps(3, 2)
    expected, found = saved.optimization.tensors(), other.optimization.tensors()
    assert found.keys() == expected.keys() == saved.optimization.expected.keys()
    assert not [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)]
    weights = zip(saved.model.parameters(), other.model.parameters(), strict=True)
    assert all(torch.equal(one, another) for one, another in weights)
    return saved


@pytest.mark.parametrize("name", OURS)
def test_training_goes_on_from_the_state_that_was_saved_to_the_same_bits(name: str) -> None:
    saved = require_going_on(**OURS[name])
    assert not [kept for kept in saved.optimization.tensors() if ".1." in kept], "frozen weights have no state"


@pytest.mark.parametrize("of_torch", OF_TORCH, ids=lambda optimizer: str(optimizer.__name__))
def test_nothing_knows_what_an_optimizer_keeps(of_torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(optimizers.OPTIMIZERS, "adamw", lambda groups, _: of_torch(groups))
    require_going_on()


def test_names_are_kinds_and_parameters() -> None:
    kept = set(require_going_on().optimization.tensors())
    assert kept >= {"exp_avg.0.weight", "exp_avg_sq.0.bias", "step.scale"}
    assert {name for name in require_going_on(**SGD).optimization.tensors() if name.endswith("2.bias")} == {
        "momentum_buffer.2.bias"
    }


@pytest.mark.parametrize(
    ("of", "configured", "lines"),
    [
        ("sgd", "adamw", ["exp_avg.0.bias: nothing in the checkpoint, F32 [6] in the optimizer"]),
        ("adamw", "nesterov", ["exp_avg.0.bias: F32 [6] in the checkpoint, nothing in the optimizer"]),
        ("sgd without momentum", "adamw", []),
    ],
)
def test_the_state_of_another_optimizer_is_refused_and_both_are_named(
    of: str, configured: str, lines: list[str]
) -> None:
    saved, other = Case(**OURS[of]), Case(**OURS[configured])
    saved.take_steps(0, 1)
    with pytest.raises(IncompatibleRunError) as caught:
        restore(saved, other)
    names = saved.config.optimizer, other.config.optimizer
    assert f"train.optimizer is {names[1]!r}, and the run was trained with {names[0]!r}" in str(caught.value)
    assert [line for line in lines if line not in str(caught.value)] == []
    assert str(caught.value).endswith("Restore [train] as it was when the run began, or start a new run.")


def test_a_part_of_the_state_is_refused_and_none_of_it_is_the_state_before_the_first_change() -> None:
    saved = Case()
    restore(saved, Case())  # an fp16 overflow in each step so far
    saved.take_steps(0, 1)
    del saved.optimization.optimizer.state[saved.scale]["exp_avg"]
    with pytest.raises(IncompatibleRunError, match=r"exp_avg\.scale: nothing in the checkpoint, F32 \[\] in the opt"):
        restore(saved, Case())


def test_what_is_no_tensor_is_an_error_and_never_left_out() -> None:
    case = Case()
    case.take_steps(0, 1)
    case.optimization.optimizer.state[case.scale]["history"] = [3]
    with pytest.raises(TypeError, match=r"AdamW keeps history\.scale as list, expected a tensor or a number"):
        case.optimization.tensors()
