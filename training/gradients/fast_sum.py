"""Plain DistributedDataParallel: gradients are added as floats, in an order that depends on the number of ranks.

Invariant: the same number of ranks gives the same bits, also after a resume. Another number does not.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from training.collectives import all_reduce
from training.gradients.fixed_point import NUM_TALLIES
from training.rank_status import Collective
from training.world import World


class FastSum:
    """Sums the gradients of a step's microbatches over microbatches and ranks; `parallel` is the model to call.

    And `receipts`, as the exact sum does, in a message of their own.
    """

    is_wrong = is_unequal = False  # a sum of floats has no hash by which to know
    is_not_finite = False  # nobody looks before the weights are changed

    def __init__(
        self,
        model: nn.Module,
        world: World,
        device: torch.device,
        device_ids: list[int] | None,
        num_receipts: int = 0,
    ) -> None:
        self.receipts = torch.zeros(num_receipts, dtype=torch.int64, device=device)
        self._world = world
        # DDP divides the sum over ranks by their number; the loss is already a share of the whole batch.
        self.loss_factor = float(world.size)
        # Looking for unused parameters is what keeps DDP from regrouping its buckets after the first step of a
        # process. Regrouped buckets are summed in another order, so the step after a resume would differ by some bits.
        self.parallel = DistributedDataParallel(
            model,
            device_ids=device_ids,
            gradient_as_bucket_view=True,
            find_unused_parameters=True,
            broadcast_buffers=False,  # none may change in training
        )
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._no_tallies = torch.zeros(NUM_TALLIES, dtype=torch.int64, device=device)

    def attempts(self) -> Iterator[None]:
        """Compute all microbatches of a step for each value: once."""
        self.receipts.zero_()
        yield

    @contextmanager
    def microbatch(self, is_last: bool) -> Iterator[None]:
        """Context of forward and backward of one of this rank's microbatches; gradients travel with the last one."""
        with nullcontext() if is_last else self.parallel.no_sync():
            yield
        if is_last:
            self._give_zeros()
            all_reduce(self.receipts, self._world, Collective.GRADIENTS)

    def take_tallies(self, _norm: Tensor) -> Tensor:
        """Nothing is counted here."""
        return self._no_tallies

    def _give_zeros(self) -> None:
        """DDP leaves a parameter that no microbatch used without a gradient; it is zero, as in the exact sum."""
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
