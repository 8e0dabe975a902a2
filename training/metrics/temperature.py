"""The one number by which all logits are divided, so that the probabilities are how often the model is right.

Temperature scaling: Guo et al. 2017, "On Calibration of Modern Neural Networks", section 4.2. It changes no prediction.
Invariant: a function of logits and labels alone, in float64 on the CPU and in their order, with a bounded result: a
model that is never wrong would ask for 0, one that knows nothing for infinity.
"""

from typing import NamedTuple

import torch
from scipy.optimize import brentq
from torch import Tensor

LOWEST, HIGHEST = 0.05, 20.0
# Of 1 / temperature.
TOLERANCE = 1e-12


class Temperature(NamedTuple):
    """`is_bounded`: a smaller or larger one would fit better still."""

    value: float
    is_bounded: bool


def fit_temperature(logits: Tensor, labels: Tensor) -> Temperature:
    """The temperature with the smallest mean cross entropy, of decisions as `TargetKind.decisions` gives them.

    Logits [N, options] must be finite, and N at least 1. The loss is convex in 1 / temperature, so it is smallest where
    its slope is zero.
    """
    right = logits.gather(1, labels[:, None])[:, 0].mean().item()

    def slope(inverse: float) -> float:
        return float((torch.softmax(logits * inverse, dim=1) * logits).sum(dim=1).mean().item() - right)

    coldest, hottest = 1 / LOWEST, 1 / HIGHEST
    if slope(hottest) >= 0:
        return Temperature(HIGHEST, True)
    if slope(coldest) <= 0:
        return Temperature(LOWEST, True)
    return Temperature(1 / float(brentq(slope, hottest, coldest, xtol=TOLERANCE)), False)


def mean_loss(logits: Tensor, labels: Tensor, temperature: float) -> float:
    """Mean cross entropy of [N, options] logits divided by the temperature."""
    return float(torch.nn.functional.cross_entropy(logits / temperature, labels).item())
