"""An optimizer that a function of the user's own makes: what it keeps comes back, and what could not is refused."""

from pathlib import Path
from typing import Any

import pytest

from storage.errors import ConfigurationError, IncompatibleRunError
from tests.helpers.own_modules import optimizer_settings, write_optimizer
from tests.unit.training.test_optimizer_state import require_going_on
from training.configuration import TrainConfig

OF_TORCH = ("Adagrad", "NAdam", "RMSprop", "Adafactor", "AdamW", "Rprop", "ASGD")
# A number, a tensor and a float of Python's are what it keeps of each parameter.
OWN = """
import torch


class Lion(torch.optim.Optimizer):
    def __init__(self, groups, beta):
        super().__init__(groups, {"beta": beta})
        # MORE OF INIT

    @torch.no_grad()
    def step(self, closure=None):
        # MORE OF STEP
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state.setdefault("mean", torch.zeros_like(parameter))
                state["count"] = state.get("count", 0) + 1
                state["sum"] = state.get("sum", 0.0) + 1 / 3
                # MORE FOR EACH
                state["mean"].lerp_(parameter.grad, 1 - group["beta"])
                parameter.mul_(1 - group["lr"] * group["weight_decay"] / state["sum"])
                parameter.sub_(state["mean"].sign(), alpha=group["lr"] / state["count"])


def build(groups, beta=0.9):
    return Lion(groups, beta)
"""


def settings(folder: Path, code: str, **options: Any) -> dict[str, Any]:
    """As a run has them that was begun with the file as it is."""
    return optimizer_settings(write_optimizer(folder, code), **options)


@pytest.mark.parametrize("name", OF_TORCH)
def test_of_each_of_torch_all_state_comes_back(name: str, tmp_path: Path) -> None:
    require_going_on(**settings(tmp_path, f"import torch\ndef build(groups): return torch.optim.{name}(groups)"))


def test_numbers_come_back_as_numbers_with_all_their_bits(tmp_path: Path) -> None:
    saved = require_going_on(**settings(tmp_path, OWN, beta=0.95))
    (kept, *_) = saved.optimization.optimizer.state.values()
    assert (type(kept["count"]), type(kept["sum"])) == (int, float)
    assert kept["sum"] == sum([1 / 3] * 5)
    assert {group["weight_decay"] for group in saved.optimization.optimizer.param_groups} == {0.01, 0.0}
    assert all(group["beta"] == 0.95 for group in saved.optimization.optimizer.param_groups)


REFUSED = {
    "a closure": ("import torch\ndef build(groups): return torch.optim.LBFGS([p for g in groups for p in g['params']])",
                  r"A step of the optimizer that .*build makes failed: TypeError: .*closure"),
    "no optimizer": ("def build(groups): return 3", r"returned int, expected a torch\.optim\.Optimizer"),
    "a part": ("import torch\ndef build(groups): return torch.optim.SGD(groups[:1])", "changes 2 of the 5 trained"),
    "an error": ("def build(groups): return groups[7]", r"could not make the optimizer: IndexError: .*\n.*in build"),
    "a list": (OWN.replace("# MORE FOR EACH", "state['all'] = [1]"), "keeps 'all' of a parameter as list"),
    "random": (OWN.replace("# MORE FOR EACH", "parameter.add_(torch.rand_like(parameter))"), "came to other weights"),
    "of groups": (OWN.replace("# MORE OF STEP", "self.param_groups[0]['k'] = self.param_groups[0].get('k', 0) + 1"),
                  "changes the entry 'k' of its groups, of group 0 in a step"),
    "of itself": (OWN.replace("# MORE OF INIT", "self.calls = 0").replace("# MORE OF STEP", "self.calls += 1"),
                  "changes its attribute 'calls' in a step"),
    "a key": (OWN.replace("# MORE OF STEP", "self.state['all'] = {}"), "keeps state under a key that is no parameter"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_not_be_resumed_is_refused_before_the_first_step(name: str, tmp_path: Path) -> None:
    code, message = REFUSED[name]
    with pytest.raises(ConfigurationError, match=message):
        require_going_on(**settings(tmp_path, code))


def test_a_file_that_was_changed_is_refused_by_its_name(tmp_path: Path) -> None:
    begun = settings(tmp_path, OWN)
    (tmp_path / "my_optim.py").write_text(f"{OWN}\n")
    with pytest.raises(IncompatibleRunError, match=r"train\.optimizer_factory names, .*: my_optim\.py was changed"):
        require_going_on(**begun)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimizer": "factory"}, "optimizer is 'factory', which needs optimizer_factory"),
        ({"optimizer_factory": "./my_optim.py:build"}, "optimizer_factory goes with optimizer = 'factory' alone"),
        ({"optimizer": "factory", "optimizer_factory": "my_optim.py"}, r"expected '\./my_file\.py:build'"),
        ({"optimizer": "factory", "optimizer_factory": "a:b", "momentum": 0.9}, "momentum goes with optimizer = 'sgd'"),
    ],
)
def test_a_mistake_in_the_configuration_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig.model_validate(given)
