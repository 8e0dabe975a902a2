"""The loss: that of the kind of target with weights for rare classes, normalised by constants of the run.

Invariant: a sample's share of the loss depends on the sample alone. Dividing by the batch size, and not by what a
microbatch or a rank happens to hold, is what makes the sum over microbatches the same however they are assigned.
"""

import torch
from torch import Tensor, nn

from storage.datasets import Target
from training.targets.registry import kind_of


class Objective(nn.Module):
    """Sum of the weighted losses of a microbatch's samples, divided by the size of the whole batch."""

    class_weights: Tensor

    def __init__(self, target: Target, class_weighting: float, label_smoothing: float, batch_size: int) -> None:
        super().__init__()
        self.kind = kind_of(target)
        self.label_smoothing = label_smoothing
        self.batch_size = batch_size
        self.register_buffer("class_weights", class_weights(target.class_counts, class_weighting), persistent=False)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """`logits` [B, outputs], `labels` [B]; a scalar."""
        losses = self.kind.sample_losses(logits, labels, self.label_smoothing)
        return (losses * self.kind.sample_weights(labels, self.class_weights)).sum() / self.batch_size


def class_weights(class_counts: list[int], exponent: float) -> Tensor:
    """Weight of each class, [classes]: inverse frequency to the power `exponent`, with mean 1 over the samples."""
    counts = torch.tensor(class_counts, dtype=torch.float64)
    shares = counts / counts.sum()
    weights = shares.clamp(min=1e-12) ** -exponent
    return (weights / (weights * shares).sum()).float()
