"""One optimizer step: forward and backward over this rank's leaves, the sum over ranks, the change of the weights.

Invariant: what `take_step` does depends on the weights, the optimizer's state, the step and its leaves, and on nothing
that happened before in this process.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from training.batches import Leaf
from training.configuration import TrainConfig
from training.objective import Objective
from training.optimization import Optimization
from training.precision import Precision
from training.seeds import seed_everything
from training.world import World


class Trainer:
    """A model under `DistributedDataParallel` with its optimizer."""

    def __init__(
        self, model: nn.Module, objective: Objective, config: TrainConfig, precision: Precision, world: World
    ) -> None:
        self.model = model
        self.device = precision.device
        self.optimization = Optimization(model, config, precision.device)
        self._config = config
        self._objective = objective
        self._precision = precision
        self._world = world
        # Looking for unused parameters is what keeps DDP from regrouping its buckets after the first step of a
        # process. Regrouped buckets are summed in another order, so the step after a resume would differ by some bits.
        self._parallel = DistributedDataParallel(
            model, device_ids=_device_ids(precision.device), find_unused_parameters=True, gradient_as_bucket_view=True
        )

    def take_step(self, step: int, leaves: list[Leaf]) -> Tensor:
        """From the state at `step` to the state at `step + 1`. Returns this rank's share of the loss, on the device."""
        total = torch.zeros((), device=self._precision.device)
        for leaf in leaves:
            seed_everything(self._config.seed, step, leaf.index)
            with self._sync_after(is_last=leaf is leaves[-1]):
                loss = self._loss(leaf.to(self._precision.device))
                # DDP divides the sum over ranks by their number; the loss is already a share of the whole batch.
                self.optimization.backward(loss * self._world.size)
            total += loss.detach()
        self.optimization.step(step)
        return total

    def _loss(self, leaf: Leaf) -> Tensor:
        with self._precision.autocast():
            logits = self._parallel(leaf)
        loss: Tensor = self._objective(logits, leaf.labels)
        return loss

    def _sync_after(self, is_last: bool) -> AbstractContextManager[None]:
        """Gradients travel once a step, with the rank's last leaf; those before are only accumulated."""
        return nullcontext() if is_last else self._parallel.no_sync()


def _device_ids(device: torch.device) -> list[int] | None:
    return None if device.index is None else [device.index]
