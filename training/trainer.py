"""One optimizer step: forward and backward over this rank's microbatches, the sum over ranks, the update.

Invariant: what `take_step` does depends on the weights, the optimizer's state, the step and its microbatches, and on
nothing that happened before in this process.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from storage.runs.run_state import RollbackRecord
from training.batches.consumption import Consumption
from training.batches.receipts import ReceiptWords
from training.batches.seeds import seed_everything
from training.batches.tensors import Microbatch
from training.configuration import TrainConfig
from training.gradients.exact_sum import ExactSum
from training.gradients.fast_sum import FastSum
from training.gradients.only_gradient import OnlyGradient
from training.models.buffers import Buffers
from training.models.objective import Objective
from training.models.out_of_memory import explain
from training.models.precision import Precision
from training.models.source import ModelSource
from training.optim.optimization import Optimization
from training.world import World


class Trainer:
    """A model, which `source` has built, with its optimizer, and what it consumed."""

    def __init__(
        self,
        source: ModelSource,
        model: nn.Module,
        objective: Objective,
        config: TrainConfig,
        precision: Precision,
        world: World,
        rollbacks: Sequence[RollbackRecord] = (),
    ) -> None:
        self.model = model
        self.device = precision.device
        self.objective = objective
        self.optimization = Optimization(model, config, precision.device, rollbacks, source.rate_factors(model))
        self._receipts = ReceiptWords(config.microbatches, config.batch_size)
        self.consumption = Consumption(self._receipts)
        # The step, counted from 1, in which this rank received a wrong sum; 0 if in none.
        self.wrong_step = 0
        # What all ranks do at a step, counted from 0, of which no weights may come, while they still have theirs: it
        # raises an error if they are not the same, or were not when they computed the step's gradients.
        self.require_equal: Callable[[int], None] = lambda step: None
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())
        self._source = source
        self._config = config
        self._precision = precision
        self._place = world.place
        self._buffers = Buffers(model)
        self._sum = _make_sum(model, config, precision, world, self.optimization, self._receipts.num_words)

    def take_step(self, step: int, microbatches: list[Microbatch]) -> Tensor:
        """Train from the state at `step` to the state at `step + 1`.

        Returns, on the device and in fp64, the loss of each microbatch of the step, whichever rank had it, and behind
        them the sum's two tallies and the norm of the gradient: [microbatches + 3]. The same on every rank.
        """
        of_samples = self._receipts.of_samples(microbatches)
        if self.device.type == "cuda":
            of_samples = of_samples.pin_memory()  # from where it is fetched while the CPU goes on
        for _ in self._sum.attempts():
            self._sum.receipts[self._config.microbatches :].copy_(of_samples, non_blocking=True)
            for microbatch in microbatches:
                self._add_gradient(step, microbatch, is_last=microbatch is microbatches[-1])
        if self._sum.is_not_finite or self._sum.is_unequal:
            self.require_equal(step)
        if self._sum.is_wrong:
            self.wrong_step = step + 1
        norm = self.optimization.step(step)
        words = self._sum.receipts.clone()  # the next step overwrites them
        self.consumption.record(step, words)
        losses = self._receipts.losses(words)
        return torch.cat([losses, self._sum.take_tallies(norm).double(), norm.double().reshape(1)])

    @property
    def unequal_hashes(self) -> list[int]:
        """Of all ranks' weights as the last step's gradients were computed of them; none where they were the same."""
        return self._sum.hashes if isinstance(self._sum, ExactSum) and self._sum.is_unequal else []

    def abandon_step(self) -> None:
        """Forget a step that another rank did not live to end: it is taken anew. The weights are those before it."""
        assert isinstance(self._sum, ExactSum), "of other sums a segment ends"
        self._sum.abandon()

    def _add_gradient(self, step: int, microbatch: Microbatch, is_last: bool) -> None:
        """Forward and backward of one microbatch: its gradient into the sum, its loss into the receipts."""
        seed_everything(self._config.seed, step, microbatch.index)
        try:
            place = self._place.computing(step, microbatch.index, microbatch.rows)  # waits for no other rank
            with self._sum.microbatch(is_last), self._buffers.held(), place:
                loss = self._loss(microbatch.to(self.device))
                # Before backward, with which they are sent.
                self._receipts.losses(self._sum.receipts)[microbatch.index] = loss.detach()
                self.optimization.backward(loss * self._sum.loss_factor)
        except torch.OutOfMemoryError as error:
            explain(error, self._source, self.model, microbatch, self._precision, self._config)

    def _loss(self, microbatch: Microbatch) -> Tensor:
        with self._precision.autocast():
            logits = self._sum.parallel(microbatch)
        loss: Tensor = self.objective(logits, microbatch.labels, microbatch.weights)
        return loss


def _make_sum(
    model: nn.Module,
    config: TrainConfig,
    precision: Precision,
    world: World,
    optimization: Optimization,
    num_receipts: int,
) -> ExactSum | FastSum | OnlyGradient:
    if config.microbatches == 1:
        return OnlyGradient(model, optimization, num_receipts)
    if config.sum == "exact":
        return ExactSum(model, config.microbatches, optimization, world, num_receipts)
    device = precision.device
    return FastSum(model, world, device, None if device.index is None else [device.index], num_receipts)
