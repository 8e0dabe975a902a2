"""Byte strings that stand anywhere in some buffers: the tokens and the ids of samples.

Invariant: choosing, reordering and joining them moves no byte; only what is gathered is copied, once, by Arrow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

# Arrow's layout of a binary view (Arrow Columnar Format, "Variable-size Binary View Layout"): a string of up to so many
# bytes stands in the view itself, of a longer one the number of its buffer and its offset in that. The first bytes of a
# longer one would stand there too; they are for comparisons, and none is made.
INLINE_BYTES = 12
_VIEW = np.dtype(
    {
        "names": ["size", "inline", "buffer", "start"],
        "formats": ["<i4", (np.uint8, INLINE_BYTES), "<i4", "<i4"],
        "offsets": [0, 4, 8, 12],
        "itemsize": 16,
    }
)
# An offset in a view is a number of 31 bits. A longer buffer is given as several, which overlap by as much as is left.
SPAN_BITS = 30


@dataclass(frozen=True)
class ByteStrings:
    """N byte strings, each in one of the buffers."""

    buffers: tuple[Bytes, ...]
    buffer_indices: NDArray[np.int64]  # [N]
    starts: NDArray[np.int64]  # [N] in their buffers
    sizes: NDArray[np.int64]  # [N] in bytes, less than 1 GiB

    def __len__(self) -> int:
        return len(self.sizes)

    def at(self, indices: slice | NDArray[np.int64]) -> "ByteStrings":
        """The strings at these indices, in this order."""
        return ByteStrings(self.buffers, self.buffer_indices[indices], self.starts[indices], self.sizes[indices])

    def gather(self, behind: NDArray[np.int64], filler: int) -> Bytes:
        """All strings one after the other, and behind each so many bytes that are `filler`.

        Raises `IndexError` for a string that is not within its buffer.
        """
        self._require_within_buffers()
        views = np.zeros(2 * len(self), _VIEW)
        self._fill_in(views[::2])
        fillings = views[1::2]
        fillings["size"] = behind
        fillings["inline"] = filler
        long = behind > INLINE_BYTES
        fillings["buffer"][long], fillings["start"][long] = len(self.buffers), 0
        buffers = (views, *self.buffers, np.full(behind.max(initial=0), filler, np.uint8))
        array = pa.Array.from_buffers(pa.binary_view(), len(views), [None, *map(pa.py_buffer, buffers)])
        _, _, gathered = array.cast(pa.large_binary()).buffers()
        return np.frombuffer(gathered, np.uint8)[: self.sizes.sum() + behind.sum()]

    def _require_within_buffers(self) -> None:
        # Arrow would read whatever memory is there.
        ends = np.array([len(buffer) for buffer in self.buffers], dtype=np.int64)[self.buffer_indices]
        if (self.starts < 0).any() or (self.sizes < 0).any() or (self.starts + self.sizes > ends).any():
            raise IndexError("strings are not within their buffers")

    def _fill_in(self, views: NDArray[np.void]) -> None:
        views["size"], views["buffer"], views["start"] = self.sizes, self.buffer_indices, self.starts
        short = (self.sizes > 0) & (self.sizes <= INLINE_BYTES)
        for index in np.unique(self.buffer_indices[short]).tolist():
            own = np.flatnonzero(short & (self.buffer_indices == index))
            buffer, within = self.buffers[index], np.arange(INLINE_BYTES)
            found = buffer[np.minimum(self.starts[own, None] + within, len(buffer) - 1)]
            views["inline"][own] = found * (within < self.sizes[own, None])


def strings_in(buffer: Bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> ByteStrings:
    """The strings that begin at these offsets of one buffer of any length."""
    spans = range(0, max(1, len(buffer)), 1 << SPAN_BITS)
    buffers = tuple(buffer[start : start + (2 << SPAN_BITS) - 1] for start in spans)
    return ByteStrings(buffers, starts >> SPAN_BITS, starts & ((1 << SPAN_BITS) - 1), sizes)


def join_strings(parts: Sequence[ByteStrings]) -> ByteStrings:
    """All strings of the parts, one after the other."""
    firsts = accumulate((len(part.buffers) for part in parts), initial=0)
    return ByteStrings(
        tuple(buffer for part in parts for buffer in part.buffers),
        np.concatenate([part.buffer_indices + first for part, first in zip(parts, firsts, strict=False)]),
        np.concatenate([part.starts for part in parts]),
        np.concatenate([part.sizes for part in parts]),
    )
