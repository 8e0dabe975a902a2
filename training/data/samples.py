"""Samples as arrays: what is read from shards, and what microbatches are made of.

Invariant: all that is known of a sample stands at one index of arrays, and no sample is a Python object. Choosing,
reordering and joining samples moves neither tokens nor ids.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.runs.ledger import ID_SEPARATOR
from training.data.byte_strings import Bytes, ByteStrings, join_strings, strings_in

# Few distinct lengths: kernels are chosen and compiled once for each shape.
PADDING_MULTIPLE = 8


@dataclass(frozen=True)
class Samples:
    """N samples, not padded; K numeric and C categorical columns."""

    rows: NDArray[np.int64]  # [N] indices in the split
    labels: NDArray[np.integer[Any]]  # [N] int64, or uint8 [N, classes] of 0 and 1 where a row has a list of labels
    weights: NDArray[np.float32]  # [N] in the loss, with mean 1 over the training split
    numeric: NDArray[np.float32]  # [N, 2K]: values, then is-missing flags
    categorical: NDArray[np.int64]  # [N, C]
    tokens: ByteStrings  # [N] each token in as many bytes as `token_type` has
    ids: ByteStrings  # [N] UTF-8
    token_type: np.dtype[Any]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Numbers of tokens [N]."""
        return self.tokens.sizes // self.token_type.itemsize

    def at(self, indices: slice | NDArray[np.int64]) -> "Samples":
        """The samples at these indices, in this order."""
        return Samples(
            self.rows[indices],
            self.labels[indices],
            self.weights[indices],
            self.numeric[indices],
            self.categorical[indices],
            self.tokens.at(indices),
            self.ids.at(indices),
            self.token_type,
        )

    def padded_tokens(self, groups: NDArray[np.int64]) -> NDArray[Any]:
        """Tokens of `groups` [G, 2], sample counts and lengths, one after the other, padded with zeros."""
        counts, widths = groups.T
        padded = self.tokens.gather(np.repeat(widths, counts) * self.token_type.itemsize - self.tokens.sizes, 0)
        return padded.view(self.token_type)

    def separated_ids(self) -> Bytes:
        """Ids of the samples, UTF-8, each with the ledger's separator behind it."""
        return self.ids.gather(np.ones(len(self), dtype=np.int64), ord(ID_SEPARATOR))


def join(parts: Sequence[Samples]) -> Samples:
    """All samples of the parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return Samples(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.weights for part in parts]),
        np.concatenate([part.numeric for part in parts]),
        np.concatenate([part.categorical for part in parts]),
        join_strings([part.tokens for part in parts]),
        join_strings([part.ids for part in parts]),
        parts[0].token_type,
    )


def as_arrays(samples: Samples) -> dict[str, list[NDArray[Any]]]:
    """Arrays of the samples, to be kept: of each the chunks that, one after the other, are the whole."""
    token_starts, id_starts = (_starts_in_all(strings) for strings in (samples.tokens, samples.ids))
    return {
        "rows": [samples.rows],
        "labels": [samples.labels],
        "weights": [samples.weights],
        "numeric": [samples.numeric],
        "categorical": [samples.categorical],
        "token_starts": [token_starts],
        "token_sizes": [samples.tokens.sizes],
        "id_starts": [id_starts],
        "id_sizes": [samples.ids.sizes],
        "tokens": list(samples.tokens.buffers),
        "ids": list(samples.ids.buffers),
    }


def from_arrays(arrays: Mapping[str, NDArray[Any]], token_type: np.dtype[Any]) -> Samples:
    """The samples that were kept as these arrays; nothing is copied."""
    return Samples(
        arrays["rows"],
        arrays["labels"],
        arrays["weights"],
        arrays["numeric"],
        arrays["categorical"],
        strings_in(arrays["tokens"], arrays["token_starts"], arrays["token_sizes"]),
        strings_in(arrays["ids"], arrays["id_starts"], arrays["id_sizes"]),
        token_type,
    )


def padded_length(longest: int) -> int:
    """Tokens to which a microbatch of one group is padded."""
    return -(-max(1, longest) // PADDING_MULTIPLE) * PADDING_MULTIPLE


# What `samples_of` asks for, if it is there: a sample's length follows from its tokens, and not all have weights.
COLUMNS = ["id", "label", "tokens", "numeric", "missing", "categorical", "weight"]


def samples_of(
    table: pa.Table, first_row: int, num_classes: int, num_numeric: int, num_categorical: int, token_type: np.dtype[Any]
) -> Samples:
    """The samples of a row group as it stands in a shard, to be joined with others.

    Raises what Arrow and NumPy raise for one that is damaged.
    """
    num_rows = table.num_rows
    values, missing = (_flat(table, name).reshape(num_rows, num_numeric) for name in ("numeric", "missing"))
    return Samples(
        rows=np.arange(first_row, first_row + num_rows),
        labels=_labels(table, num_classes),
        weights=_weights(table),
        numeric=np.concatenate([values, missing], axis=1).astype(np.float32),
        categorical=_flat(table, "categorical").reshape(num_rows, num_categorical).astype(np.int64),
        tokens=_strings(_array(table, "tokens")),
        ids=_strings(_array(table, "id")),
        token_type=token_type,
    )


def _labels(table: pa.Table, num_classes: int) -> NDArray[np.integer[Any]]:
    """The index of each row's class, or where it has a list of them 1 at the index of each."""
    column = _array(table, "label")
    if not isinstance(column, pa.ListArray):
        return _values(column).astype(np.int64)
    labels = np.zeros((len(column), num_classes), np.uint8)
    labels[np.repeat(np.arange(len(column)), np.diff(_values(column.offsets))), _flat(table, "label")] = 1
    return labels


def _weights(table: pa.Table) -> NDArray[np.float32]:
    """The weight of each row, 1 where rows have none."""
    if "weight" not in table.column_names:
        return np.ones(table.num_rows, np.float32)
    return _values(_array(table, "weight"))


def _strings(column: pa.StringArray | pa.BinaryArray) -> ByteStrings:
    """The bytes of all values, not copied."""
    _, offset_buffer, data = column.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    values = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return strings_in(values, offsets[:-1], np.diff(offsets))


def new_array(length: int, kind: Any) -> NDArray[Any]:
    """An array that is to be filled, from Arrow's own pool of memory.

    The system's would hand out new pages each time, and take as long for it as it takes to fill them.
    """
    buffer = pa.allocate_buffer(length * np.dtype(kind).itemsize)
    return np.frombuffer(buffer, dtype=kind)


def _starts_in_all(strings: ByteStrings) -> NDArray[np.int64]:
    """Where the strings begin when all buffers stand one after the other."""
    firsts = np.array(list(accumulate(map(len, strings.buffers), initial=0)))
    starts: NDArray[np.int64] = firsts[strings.buffer_indices] + strings.starts
    return starts


def _flat(table: pa.Table, column: str) -> NDArray[Any]:
    """The elements of all lists. Arrow's own `flatten` would load `pyarrow.compute`, in every rank."""
    lists = _array(table, column)
    offsets = _values(lists.offsets)
    return _values(lists.values)[offsets[0] : offsets[-1]]


def _array(table: pa.Table, column: str) -> pa.Array:
    """A column in one piece, which one of a row group is almost always: then it is not copied."""
    chunks = table.column(column).chunks
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def _values(array: pa.Array) -> NDArray[Any]:
    """The values of an array without nulls, not copied. Arrow's own `to_numpy` would load pandas, in every rank."""
    return np.from_dlpack(array)
