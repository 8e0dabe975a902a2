"""Stochastic gradient descent with momentum. Sutskever, Martens, Dahl and Hinton, ICML 2013.

Weight decay is added to the gradient, times the weight. Invariant: weights and momentum have the bits that
`torch.optim.SGD` gives them with `fused=True`.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim.sgd import sgd

from training.optim.kernels import Group, KernelOptimizer

MOMENTUM = "momentum_buffer"


class SGD(KernelOptimizer):
    """Keeps one moment of each parameter; nothing where `momentum` is 0. With `nesterov` momentum looks ahead."""

    def __init__(self, groups: Sequence[Group], momentum: float, nesterov: bool) -> None:
        super().__init__(groups, {"momentum": momentum, "nesterov": nesterov})

    def _change(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        # Zero momentum before the first step comes to what torch has then: the gradient. So all are of one kind, and
        # a parameter whose first gradient comes late makes no difference to the kernel.
        moments = (MOMENTUM,) if group["momentum"] else ()
        buffers: list[Tensor | None] = [self._state_of(p, moments)[kind] for p in parameters for kind in moments]
        sgd(
            parameters, gradients, buffers,
            lr=group["lr"], weight_decay=group["weight_decay"], momentum=group["momentum"], dampening=0.0,
            nesterov=group["nesterov"], maximize=False, fused=True, foreach=False,
        )  # fmt: skip
