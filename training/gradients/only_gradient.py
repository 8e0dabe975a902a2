"""The gradient of a step that has one microbatch: it is the sum already, and nothing is rounded.

Invariant: as with any sum, a parameter that the microbatch did not use has the gradient zero, and a gradient that is
not finite is counted at its step.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from training.gradients.fixed_point import NUM_TALLIES, OUTSIDE
from training.optim.optimization import Optimization


class OnlyGradient:
    """In place of a sum, where a step has one microbatch, and so one rank; `parallel` is the model to call.

    `receipts` int64 [`num_receipts`] stay what this rank wrote there.
    """

    loss_factor = 1.0
    is_wrong = is_unequal = is_not_finite = False  # nothing travels, and there is no other rank to compare with

    def __init__(self, model: nn.Module, optimization: Optimization, num_receipts: int = 0) -> None:
        self.parallel = model
        self._optimization = optimization
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.receipts = torch.zeros(num_receipts, dtype=torch.int64, device=self._parameters[0].device)

    def attempts(self) -> Iterator[None]:
        """Compute the microbatch for each value: once."""
        self.receipts.zero_()
        yield

    @contextmanager
    def microbatch(self, is_last: bool) -> Iterator[None]:
        """Context of forward and backward of the microbatch."""
        yield
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def take_tallies(self, norm: Tensor) -> Tensor:
        """Whether the gradient was not finite, by its `norm` [], and no values that rounded to zero: int64 [2].

        A norm that is finite is one of finite values, and looking at them takes a pass over all. In fp16 overflow is
        the gradient scaler's business: it sees the NaN and skips the step.
        """
        tallies = torch.zeros(NUM_TALLIES, dtype=torch.int64, device=norm.device)
        if not self._optimization.scaler.is_enabled():
            tallies[OUTSIDE] = ~norm.isfinite()
        return tallies
