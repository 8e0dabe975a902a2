"""Weights for rare classes: the inverse of a class's frequency to a power, so that none is changed by the power 0.

Invariant: the mean weight over the samples is 1, so weights leave the size of a step what it is.
"""

from torch import Tensor


def inverse_frequencies(counts: Tensor, exponent: float) -> Tensor:
    """Weight of each of several classes, of which a sample has one, from their samples: both float64 [..., classes]."""
    shares = counts / counts.sum(dim=-1, keepdim=True)
    weights = shares.clamp(min=1e-12) ** -exponent
    return weights / (weights * shares).sum(dim=-1, keepdim=True)
