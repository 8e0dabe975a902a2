"""Gradients as 64-bit fixed-point numbers: a sum whose bits do not depend on the order of its terms.

A microbatch's gradient is rounded once, to a multiple of the resolution, and from there on everything is integer
addition, which is associative. Invariant: nothing is lost silently: values outside the range and values that round to
zero are counted by the integers' side, and the count travels with the sum.

Long accumulators for exact sums: Kulisch, "Computer Arithmetic and Validity", 2008; this one is as short as gradients
allow.
"""

import math
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Optional

import torch
from torch import Tensor

from training.gradients import cpu_pass

# The usual range: an element of a microbatch's gradient is at most 2^16. A step that has a larger one is computed
# again, with a range that holds it.
RANGE_BITS = 16
# One bit for the sign, and one so that a sum over all microbatches at the end of the range still fits.
SUM_BITS = 62
# A sum below 2^127 stays finite when it is rounded to fp32.
LARGEST_SUM_BITS = 127
# So many values at a time go through all passes of torch's operators: they keep a GPU busy in little memory.
CHUNK_VALUES = 1 << 24
# Terms outside the range, and values that rounded to zero.
NUM_TALLIES = 2
OUTSIDE, ROUNDED_AWAY = 0, 1


class FixedPoint:
    """The representation for sums of at most `num_microbatches` terms V whose elements are at most 2^`range_bits`.

    The resolution is 2^-(62 - range_bits - ceil(log2 V)): 2^-41 for 32 microbatches and the usual range. A sum of V
    terms differs from their exact sum by at most V times half the resolution, and once more by the rounding of the
    result to fp32 (2^-24 of it). In the usual range a gradient above 2^-18 in magnitude (for 32 microbatches) is not
    rounded at all. In a wider range half the resolution times V is at most V^2 2^-61 of the largest element (2^-51 for
    32 microbatches).
    """

    def __init__(self, num_microbatches: int, range_bits: int = RANGE_BITS) -> None:
        self._num_microbatches = num_microbatches
        self._microbatch_bits = (num_microbatches - 1).bit_length()
        self.largest = 2.0**range_bits
        self.fraction_bits = SUM_BITS - range_bits - self._microbatch_bits
        self.resolution = 2.0**-self.fraction_bits

    def widened(self, largest: float, loss_scale: float = 1.0) -> Optional["FixedPoint"]:
        """The representation for terms whose largest element is `largest`, which is a `loss_scale` too large.

        None if `largest` is not finite, or so large that the sum might not be finite in fp32.
        """
        if not math.isfinite(largest) or math.frexp(largest)[1] + self._microbatch_bits > LARGEST_SUM_BITS:
            return None
        return FixedPoint(self._num_microbatches, max(RANGE_BITS, math.frexp(largest / loss_scale)[1]))

    def add_to(
        self,
        total: Tensor,
        values: Tensor,
        tallies: Tensor,
        largest: Tensor,
        loss_scale: float = 1.0,
        is_first: bool = False,
    ) -> None:
        """Add `values` / `loss_scale` to `total`, or put them there if they are the first.

        `total` int64 [N] in units of the resolution; `values` fp32 [N], a power of two `loss_scale` too large, is used
        up; `tallies` int64 [2] counts values that round to zero; `largest` fp32 [] becomes the largest magnitude of
        `values`, if it is not larger already, and NaN if one of them is.
        """
        units = 2.0**self.fraction_bits / loss_scale
        rounded_away = tallies[ROUNDED_AWAY:]
        if values.device.type == "cpu":
            cpu_pass.add_rounded(total, values, rounded_away, largest, units, is_first)
            return
        if is_first:
            total.zero_()
        if (kernel := _gpu_kernel()) is not None:
            kernel.add_rounded(total, values, rounded_away, largest, units)
        else:
            add_by_operators(total, values, rounded_away, largest, units)

    def count_outside(self, tallies: Tensor, largest: Tensor, loss_scale: float = 1.0) -> None:
        """Note in `tallies` whether `largest`, as `add_to` left it, is outside the range or not finite."""
        tallies[OUTSIDE] = ~(largest <= self.largest * loss_scale)  # true for NaN as well

    def read(self, total: Tensor, tallies: Tensor, outs: Iterable[Tensor], loss_scale: float = 1.0) -> None:
        """`total` [N] times `loss_scale` as fp32, rounded once, into `outs` of N values together, one after the other.

        All NaN if a term was outside the range.
        """
        unit = torch.full((), self.resolution * loss_scale, device=total.device)
        factor = torch.where(tallies[OUTSIDE] > 0, torch.nan, unit)
        start = 0
        for out in outs:
            out.copy_(total[start : start + out.numel()].view(out.shape)).mul_(factor)
            start += out.numel()


def add_by_operators(total: Tensor, values: Tensor, rounded_away: Tensor, largest: Tensor, units: float) -> None:
    """Add `values` x `units`, rounded to even integers, to `total`, by torch's operators alone, as they stand.

    What `cpu_pass.add_rounded` and `gpu_kernel.add_rounded` give, bit for bit, is what this gives.
    """
    for start in range(0, len(values), CHUNK_VALUES):
        part = values[start : start + CHUNK_VALUES]
        lowest, highest = torch.aminmax(part)
        torch.maximum(largest, torch.maximum(highest, -lowest), out=largest)
        num_before = torch.count_nonzero(part)
        total[start : start + CHUNK_VALUES] += part.mul_(units).round_().to(torch.int64)  # exact, by a power of two
        rounded_away += num_before - torch.count_nonzero(part)


@cache
def _gpu_kernel() -> ModuleType | None:
    """The module of the kernel that makes all passes in one, loaded where a GPU asks for it; None without Triton.

    torch's packages for GPUs bring Triton with them.
    """
    if find_spec("triton") is None:
        return None
    from training.gradients import gpu_kernel  # imports Triton, which a CPU's torch does not have

    return gpu_kernel
