"""What kinds of target share of which each sample has one class: its label is the index of that class."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from training.targets.class_weights import inverse_frequencies


class OneClass(ABC):
    """A sample's loss is multiplied by the weight of its class."""

    label_shape = ()

    @abstractmethod
    def sample_losses(self, logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Unweighted loss of each sample in fp32, [N]."""

    def class_weights(self, class_counts: Sequence[int], num_rows: int, exponent: float) -> Tensor:
        """[classes], the inverse frequencies to the power `exponent`."""
        return inverse_frequencies(torch.tensor(class_counts, dtype=torch.float64), exponent).float()

    def weighted_losses(
        self, logits: Tensor, labels: Tensor, class_weights: Tensor, label_smoothing: float = 0.0
    ) -> Tensor:
        """Loss of each sample in fp32, [N]."""
        return self.sample_losses(logits, labels, label_smoothing) * class_weights[labels]
