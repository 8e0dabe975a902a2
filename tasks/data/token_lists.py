"""Lists of token ids as flat arrays: what the attention mask leaves of them, and rows in another order.

Invariant: no Python object for a row. Lists here have no nulls, which the contract has seen to.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.datasets import token_type

# So many values at a time that what is worked on stays near the processor.
GATHERED_VALUES = 1 << 18


def narrow_type(vocabulary_size: int) -> pa.DataType:
    """The type of token ids, in shards and on the way to them; of the vocabulary that the data set states."""
    return pa.type_for_alias(token_type(vocabulary_size))


def kept_tokens(tokens: pa.ListArray, mask: pa.ListArray | None, max_tokens: int, kind: pa.DataType) -> pa.ListArray:
    """The first `max_tokens` tokens of each row that the mask does not hide."""
    starts, values = flat(tokens)
    if mask is None and tokens.type == pa.list_(kind) and np.diff(starts).max(initial=0) <= max_tokens:
        return tokens
    if mask is not None:
        starts, values = _unmasked(starts, values, flat(mask)[1])
    lengths = np.diff(starts)
    if lengths.max(initial=0) > max_tokens:
        short = np.minimum(lengths, max_tokens)
        values, lengths = gather(values, starts[:-1], short), short
    return _as_lists(lengths, pa.array(values).cast(kind))


def good_tokens(
    tokens: pa.ListArray, mask: pa.ListArray | None, vocabulary_size: int, max_tokens: int | None
) -> pa.ListArray | None:
    """What the mask leaves of each row's tokens; None unless it is plain that every row keeps every rule.

    That is: no nulls, a mask of 0 and 1 that is as long as the tokens, at least one token and at most `max_tokens` in
    each row, and ids from 1 to below the vocabulary's size.
    """
    if any(_has_nulls(lists) for lists in (tokens, mask) if lists is not None):
        return None
    starts, values = flat(tokens)
    if mask is not None:
        mask_starts, mask_values = flat(mask)
        if not np.array_equal(starts, mask_starts) or mask_values.min(initial=0) < 0 or mask_values.max(initial=0) > 1:
            return None
        starts, values = _unmasked(starts, values, mask_values)
    lengths = np.diff(starts)
    is_good = (
        lengths.min(initial=1) > 0
        and (max_tokens is None or lengths.max(initial=0) <= max_tokens)
        and values.min(initial=1) > 0
        and values.max(initial=1) < vocabulary_size
    )
    # All of them fit, so they are narrowed without a look at each.
    return _as_lists(lengths, pa.array(values.astype(token_type(vocabulary_size)))) if is_good else None


def take_lists(lists: pa.ListArray, order: NDArray[np.int64]) -> pa.ListArray:
    """Rows in another order. Arrow takes lists number by number, but the bytes of a list in one chunk."""
    starts, values = flat(lists)
    size = values.itemsize
    # With offsets of 64 bits: there are more bytes than numbers.
    rows = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(lists), [None, pa.py_buffer(starts * size), pa.py_buffer(values)]
    )
    _, ends, data = rows.take(pa.array(order)).buffers()
    offsets = np.frombuffer(ends, np.int64, len(order) + 1) // size
    taken = pa.Array.from_buffers(lists.type.value_type, int(offsets[-1]), [None, data])
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), taken)


def flat(lists: pa.ListArray) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Where each row begins and the last one ends, from 0, and the values of all rows."""
    offsets = np.from_dlpack(lists.offsets).astype(np.int64)
    return offsets - offsets[0], np.from_dlpack(lists.values)[offsets[0] : offsets[-1]]


def gather(values: NDArray[Any], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[Any]:
    """The chunks of `values` that begin at `starts`, one after the other."""
    ends = np.cumsum(lengths)
    found = np.empty(ends[-1] if len(ends) else 0, dtype=values.dtype)
    row = position = 0
    while row < len(ends):
        # At least one row, however long it is.
        stop = max(row + 1, int(np.searchsorted(ends, position + GATHERED_VALUES, side="right")))
        length = lengths[row:stop]
        end = int(ends[stop - 1])
        positions = np.repeat(starts[row:stop] - (np.cumsum(length) - length), length)
        positions += np.arange(end - position)
        np.take(values, positions, out=found[position:end], mode="clip")  # "raise" would make a copy first
        row, position = stop, end
    return found


def _as_lists(lengths: NDArray[np.int64], values: pa.Array) -> pa.ListArray:
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _unmasked(
    starts: NDArray[np.int64], values: NDArray[Any], mask: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The same rows without the values where the mask is 0."""
    if np.count_nonzero(mask) == len(values):
        return starts, values
    kept = np.flatnonzero(mask)
    return np.searchsorted(kept, starts), values[kept]


def _has_nulls(lists: pa.ListArray) -> bool:
    return bool(lists.null_count or lists.flatten().null_count)
