"""Gradients as 64-bit fixed-point numbers: a sum whose bits do not depend on the order of its terms.

A leaf's gradient is rounded once, to a multiple of the resolution, and from there on everything is integer addition,
which is associative. Invariant: nothing is lost silently: values outside the range and values that round to zero are
counted by the integers' side, and the count travels with the sum.

Long accumulators for exact sums: Kulisch, "Computer Arithmetic and Validity", 2008; this one is as short as gradients
allow.
"""

import torch
from torch import Tensor

# A leaf's share of the gradient of a mean loss that is larger than 2^16 is no gradient that a run recovers from.
RANGE_BITS = 16
# One bit for the sign, and one so that a sum over all leaves at the end of the range still fits.
SUM_BITS = 62
# So many values at a time go through all passes: they stay in a processor's cache, or keep a GPU busy in little memory.
CHUNK_VALUES = 1 << 16
GPU_CHUNK_VALUES = 1 << 24
NUM_TALLIES = 2
LARGEST = 2.0**RANGE_BITS


class FixedPoint:
    """The representation for sums of at most `num_leaves` terms.

    A term's elements are at most 2^16 in magnitude; its resolution is 2^-(46 - ceil(log2 leaves)): 2^-41 for 32 leaves.
    A sum of V terms differs from their exact sum by at most V times half the resolution, and once more by the rounding
    of the result to fp32 (2^-24 of it). A gradient above 2^-18 in magnitude (for 32 leaves) is not rounded at all.
    """

    def __init__(self, num_leaves: int) -> None:
        self.fraction_bits = SUM_BITS - RANGE_BITS - (num_leaves - 1).bit_length()
        self.resolution = 2.0**-self.fraction_bits

    def add_to(self, total: Tensor, values: Tensor, tallies: Tensor, loss_scale: float = 1.0) -> None:
        """Add `values` / `loss_scale` to `total`.

        `total` int64 [N] in units of the resolution; `values` fp32 [N], a power of two `loss_scale` too large, is used
        up; `tallies` int64 [2] counts terms that are outside the range or not finite, and values that round to zero.
        """
        units = 2.0**self.fraction_bits / loss_scale
        limit = LARGEST * 2.0**self.fraction_bits
        chunk = CHUNK_VALUES if values.device.type == "cpu" else GPU_CHUNK_VALUES
        for start in range(0, len(values), chunk):
            part = values[start : start + chunk].mul_(units)  # exact, by a power of two
            smallest, largest = torch.aminmax(part)
            is_outside = ~((smallest >= -limit) & (largest <= limit))  # true for NaN as well
            num_before = torch.count_nonzero(part)
            total[start : start + chunk] += part.round_().to(torch.int64)
            tallies += torch.stack([is_outside, num_before - torch.count_nonzero(part)])

    def read(self, total: Tensor, tallies: Tensor, out: Tensor, loss_scale: float = 1.0) -> None:
        """`total` times `loss_scale` as fp32 into `out` [N], rounded once; all NaN if a term was outside the range."""
        unit = torch.full((), self.resolution * loss_scale, device=out.device)
        out.copy_(total).mul_(torch.where(tallies[0] > 0, torch.nan, unit))
