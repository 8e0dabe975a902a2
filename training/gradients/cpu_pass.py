"""One pass over a microbatch's gradient on a CPU: scaled, rounded, added to the integers, and what is counted of it.

A microbatch uses few rows of a table of token vectors, and the gradient of all others is zero: blocks of zeros are left
out, which with a pretrained encoder's vocabulary is half of all values. Invariant: sum, count and largest magnitude
are, bit for bit, those of `FixedPoint.add_to` without this.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

# What is looked at for zeros as one: about a token's vector.
BLOCK_VALUES = 512
# So many values go through all operators at a time: they stay in a processor's cache.
CHUNK_VALUES = 1 << 16


def add_rounded(
    total: Tensor, values: Tensor, rounded_away: Tensor, largest: Tensor, units: float, is_first: bool
) -> None:
    """Add `values` x `units`, each rounded to the nearest integer (of two as near, the even one), to `total`.

    `total` int64 [N], which is not read if `is_first`; `values` fp32 [N] are used up; `units` a power of two;
    `rounded_away` int64 [1] counts values that are not zero and round to it; `largest` fp32 [] becomes the largest
    magnitude, if it is not larger already, and NaN if one is.
    """
    width = math.gcd(len(values), BLOCK_VALUES)
    blocks, sums = values.view(-1, width), total.view(-1, width)
    for rows, holds_all in _rows(blocks, sums if is_first else None):
        part = blocks[rows]
        lowest, highest = torch.aminmax(part)
        torch.maximum(largest, torch.maximum(highest, -lowest), out=largest)
        num_before = _count(part)
        part.mul_(units).round_()  # exact, by a power of two
        if not is_first:
            sums[rows] += part.to(torch.int64)
        elif holds_all:
            sums[rows].copy_(part)
        else:
            sums[rows] = part.to(torch.int64)
        rounded_away += num_before - _count(part)


def _rows(blocks: Tensor, to_zero: Tensor | None) -> Iterator[tuple[slice | Tensor, bool]]:
    """Indices of blocks, and whether they are all of a chunk: first of chunks with few blocks of zeros, then the rest.

    Chunks that are not taken as a whole are zero in `to_zero` from then on.
    """
    has_value = np.bitwise_or.reduce(blocks.numpy().view(np.int32), axis=1) != 0
    size = max(1, CHUNK_VALUES // blocks.shape[1])
    for start in range(0, len(blocks), size):
        chunk = slice(start, start + size)
        here = has_value[chunk]
        if 2 * np.count_nonzero(here) > len(here):
            here[:] = False
            yield chunk, True
        elif to_zero is not None:
            to_zero[chunk].zero_()
    rest = torch.from_numpy(np.flatnonzero(has_value))
    for start in range(0, len(rest), size):
        yield rest[start : start + size], False


def _count(values: Tensor) -> int:
    """How many are not zero: by NumPy, several times as fast here as by torch."""
    return int(np.count_nonzero(values.numpy() != 0))
