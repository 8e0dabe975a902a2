"""What our optimizers have in common: torch's class of optimizers, with steps by torch's own kernels.

The classes that torch brings load its compiler when one is made: with torch 2.13 this takes each rank two seconds of
computing at every start, for nothing that it uses. Invariant: all state of a parameter is where the parameter is.
"""

from collections.abc import Sequence
from inspect import unwrap
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Group(TypedDict):
    """Parameters with a weight decay, and a share of the learning rate, of their own."""

    params: list[nn.Parameter]
    weight_decay: float
    rate_factor: float


class KernelOptimizer(Optimizer):
    """An optimizer of some groups of parameters. The learning rate is each group's `lr`, set before each step."""

    def __init__(self, groups: Sequence[Group], options: dict[str, Any]) -> None:
        super().__init__([dict(group) for group in groups], {"lr": 0.0, **options})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group as torch's method does, which would load the compiler to keep out of it."""
        unwrap(Optimizer.add_param_group)(self, param_group)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Change the weights by their gradients. A parameter without one stays as it is."""
        for group in self.param_groups:
            changing = [parameter for parameter in group["params"] if parameter.grad is not None]
            if changing:
                self._change(changing, [parameter.grad for parameter in changing], group)

    def _change(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        """One step of parameters of one group, all of them with a gradient."""
        raise NotImplementedError

    def _state_of(self, parameter: Tensor, moments: Sequence[str]) -> dict[str, Tensor]:
        """The state, of which each of `moments` is as large as the parameter and zero before its first step."""
        state: dict[str, Tensor] = self.state[parameter]
        for moment in moments:
            if moment not in state:
                state[moment] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state
