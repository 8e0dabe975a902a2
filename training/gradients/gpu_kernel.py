"""One pass over a microbatch's gradient on a GPU: scaled, rounded, added to the integers, and what is counted of it.

torch's own operators make thirteen passes of it, 76 bytes of the GPU's memory for each value where 20 will do.
Invariant: sum, count and largest magnitude are, bit for bit, those of `FixedPoint.add_to` without it. The sum is an
integer for each value, the count an integer and the largest a maximum of integers, so no order of threads reaches them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_VALUES = 4096
WARPS = 8


def add_rounded(total: Tensor, values: Tensor, rounded_away: Tensor, largest: Tensor, units: float) -> None:
    """Add `values` x `units`, each rounded to the nearest integer (of two as near, the even one), to `total`.

    `total` int64 [N]; `values` fp32 [N], which stay as they are; `units` a power of two; `rounded_away` int64 [1]
    counts values that are not zero and round to it; `largest` fp32 [] becomes the largest magnitude, if it is not
    larger already, and NaN if one is.
    """
    blocks = triton.cdiv(len(values), BLOCK_VALUES)
    _KERNEL[(blocks,)](
        values, total, rounded_away, largest.view(torch.int32), len(values), units, block=BLOCK_VALUES, num_warps=WARPS
    )


def _add_block(  # type: ignore[no-untyped-def]
    values, total, rounded_away, largest_bits, num_values, units, block: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    is_inside = at < num_values
    value = tl.load(values + at, mask=is_inside, other=0.0)
    # Without the sign the bits of floats are in the order of their magnitudes: NaN above infinity above all numbers.
    magnitude = value.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    scaled = value * units
    below = tl.floor(scaled)
    part = scaled - below
    to_even = below + (below.to(tl.int64) & 1).to(tl.float32)
    rounded = tl.where(part > 0.5, below + 1.0, tl.where(part < 0.5, below, to_even))
    sums = tl.load(total + at, mask=is_inside, other=0)
    tl.store(total + at, sums + rounded.to(tl.int64), mask=is_inside)
    # By its bits: a value that is too small to be a normal number counts too.
    num_lost = tl.sum(((magnitude != 0) & (rounded == 0.0)).to(tl.int32), axis=0)
    tl.atomic_max(largest_bits, tl.max(magnitude, axis=0), sem="relaxed")
    tl.atomic_add(rounded_away, num_lost.to(tl.int64), sem="relaxed")


_KERNEL = triton.jit(_add_block)
