"""An optimizer that a function of the user's own makes, and what is asked of it before the first step.

Invariant: all that its steps depend on is in its parameters, their gradients, the learning rate that is set, and the
tensors and numbers that it keeps for each parameter: what it kept elsewhere no checkpoint would have.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from storage.errors import ConfigurationError
from training.configuration import TrainConfig
from training.optim.kernels import Group
from training.own_code import load_function, own_errors, require_pinned

NUM_STEPS = 3


def make_own_optimizer(groups: Sequence[Group], config: TrainConfig) -> Optimizer:
    """What the configured function makes of these groups. Raises `ConfigurationError` for what is no such optimizer."""
    reference, pinned = config.optimizer_reference, config.optimizer_pinned
    assert reference is not None and pinned is not None, "pinned when a run begins"
    given = [{**group, "lr": config.learning_rate} for group in groups if group["params"]]
    factory, files = load_function(reference, pinned), require_pinned(reference, pinned).values()
    with own_errors(f"{reference.name} could not make the optimizer", files):
        optimizer = factory(given, **config.optimizer_options)
    if not isinstance(optimizer, Optimizer):
        raise ConfigurationError(
            f"{reference.name} returned {type(optimizer).__name__}, expected a torch.optim.Optimizer."
        )
    _require_groups(optimizer, given, reference.name)
    return optimizer


def _require_groups(optimizer: Optimizer, given: Sequence[Mapping[str, Any]], name: str) -> None:
    """Each parameter once, and a learning rate that can be set."""
    expected = {id(parameter) for group in given for parameter in group["params"]}
    found = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if found != expected:
        raise ConfigurationError(
            f"The optimizer that {name} makes changes {len(found)} of the {len(expected)} trained tensors, expected "
            "all of them. Give it the groups that the function gets."
        )
    has_factors = any(group["rate_factor"] != 1 for group in given)
    for group in optimizer.param_groups:
        if "lr" not in group or (has_factors and "rate_factor" not in group):
            raise ConfigurationError(
                f"The optimizer that {name} makes has a group of parameters without "
                f"{'lr, to which the schedule could be applied' if 'lr' not in group else 'rate_factor'}. Give it the "
                "groups that the function gets, as they are."
            )
        group.setdefault("rate_factor", 1.0)


def require_resumable(make: Callable[[], tuple[Optimizer, Sequence[nn.Parameter]]], config: TrainConfig) -> None:
    """Raise `ConfigurationError` for an optimizer whose steps are not a function of what a checkpoint has.

    `make` gives a new one, and its parameters, small ones that are the same each time.
    """
    reference, pinned = config.optimizer_reference, config.optimizer_pinned
    assert reference is not None and pinned is not None
    files = require_pinned(reference, pinned).values()
    with own_errors(f"A step of the optimizer that {reference.name} makes failed", files):
        found = [_take_steps(*make(), reference.name, seed) for seed in range(2)]
    if any(not torch.equal(one, other) for one, other in zip(*found, strict=True)):
        raise _refused(reference.name, "came to other weights with the same gradients", "Draw nothing at random in it")


def _take_steps(optimizer: Optimizer, parameters: Sequence[nn.Parameter], name: str, seed: int) -> list[Tensor]:
    """The parameters after some steps. The generators are at another place for each seed, the gradients are not."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(seed)
    for _ in range(NUM_STEPS):
        for parameter in parameters:
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.grad = noise.to(parameter.device)
        before = _numbers_of(optimizer)
        optimizer.step()
        _require_kept_by_parameter(optimizer, before, name)
    return [parameter.detach().clone() for parameter in parameters]


def _require_kept_by_parameter(optimizer: Optimizer, before: dict[str, Any], name: str) -> None:
    after = _numbers_of(optimizer)
    changed = sorted(key for key in after if key not in before or not _is_same(before[key], after[key]))
    if changed:
        raise _refused(
            name, f"changes {changed[0]} in a step", "Keep in self.state[parameter] what the next step needs: no "
            "checkpoint has anything else",
        )  # fmt: skip
    known = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    if not optimizer.state.keys() <= known:
        raise _refused(name, "keeps state under a key that is no parameter", "Keep it in self.state[parameter]")
    for state in optimizer.state.values():
        for kind, value in state.items():
            if not isinstance(value, Tensor | int | float):
                raise _refused(
                    name, f"keeps {kind!r} of a parameter as {type(value).__name__}",
                    "Checkpoints hold tensors and numbers: keep it as one of these",
                )  # fmt: skip


def _numbers_of(optimizer: Optimizer) -> dict[str, Any]:
    """What the optimizer has beside the parameters and their state: numbers and tensors of groups, and of itself."""
    found = {
        f"the entry {key!r} of its groups, of group {index}": value
        for index, group in enumerate(optimizer.param_groups)
        for key, value in group.items()
        if key != "params"
    }
    found |= {f"its attribute {key!r}": value for key, value in vars(optimizer).items() if not key.startswith("_")}
    return {
        key: value.clone() if isinstance(value, Tensor) else value
        for key, value in found.items()
        if isinstance(value, Tensor | int | float | str | None)
    }


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def _refused(name: str, problem: str, advice: str) -> ConfigurationError:
    return ConfigurationError(f"The optimizer that {name} makes {problem}. {advice}. Nothing was trained.")
