"""The loss: that of the kind of target with weights for rare classes, normalised by constants of the run.

Invariant: a sample's share of the loss depends on the sample alone. Dividing by the batch size, and not by what a
microbatch or a rank happens to hold, is what makes the sum over microbatches the same however they are assigned.
"""

from torch import Tensor, nn

from storage.datasets import Target
from training.targets.registry import kind_of


class Objective(nn.Module):
    """Sum of the weighted losses of a microbatch's samples, divided by the size of the whole batch."""

    class_weights: Tensor

    def __init__(
        self, target: Target, num_rows: int, class_weighting: float, label_smoothing: float, batch_size: int
    ) -> None:
        """`num_rows` are those of the training split, over which the target's classes are counted."""
        super().__init__()
        self.kind = kind_of(target)
        self.label_smoothing = label_smoothing
        self.batch_size = batch_size
        weights = self.kind.class_weights(target.class_counts, num_rows, class_weighting)
        self.register_buffer("class_weights", weights, persistent=False)

    def forward(self, logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """`logits` [B, outputs], `labels` [B, ...] as the kind has them, `weights` [B] of the samples; a scalar.

        Weights of samples have the mean 1 over the training split; 1 changes no bit.
        """
        losses = self.kind.weighted_losses(logits, labels, self.class_weights, self.label_smoothing)
        return (losses * weights).sum() / self.batch_size
