"""Samples as arrays: what is read from shards, and what leaves are made of.

Invariant: all that is known of a sample stands at one place of arrays, and no sample is a Python object. Tokens and ids
are pieces of one long array each, and a piece may be anywhere in it: choosing and reordering samples moves neither.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.runs.ledger import ID_SEPARATOR

# Few distinct lengths: kernels are chosen and compiled once for each shape.
PADDING_MULTIPLE = 8


@dataclass(frozen=True)
class Samples:
    """N samples, not padded; K numeric and C categorical columns."""

    rows: NDArray[np.int64]  # [N] indices in the split
    labels: NDArray[np.int64]  # [N]
    lengths: NDArray[np.int64]  # [N] numbers of tokens
    starts: NDArray[np.int64]  # [N] where their tokens begin in `tokens`
    numeric: NDArray[np.float32]  # [N, 2K]: values, then is-missing flags
    categorical: NDArray[np.int64]  # [N, C]
    id_starts: NDArray[np.int64]  # [N] where their ids begin in `ids`
    id_lengths: NDArray[np.int64]  # [N] in bytes, with the separator that follows each id
    tokens: NDArray[Any]  # of all samples, and behind the last so many zeros that the longest can be padded
    ids: NDArray[np.uint8]  # UTF-8

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, places: slice | NDArray[np.int64]) -> "Samples":
        """The samples at these places, in this order."""
        return Samples(
            rows=self.rows[places],
            labels=self.labels[places],
            lengths=self.lengths[places],
            starts=self.starts[places],
            numeric=self.numeric[places],
            categorical=self.categorical[places],
            id_starts=self.id_starts[places],
            id_lengths=self.id_lengths[places],
            tokens=self.tokens,
            ids=self.ids,
        )

    def padded_tokens(self, groups: NDArray[np.int64]) -> NDArray[Any]:
        """Their tokens, group after group: of so many samples each, with zeros behind each up to so many tokens."""
        counts, widths = groups.T
        padded = new_array(int((counts * widths).sum()), self.tokens.dtype)
        first = place = 0
        for count, width in groups.tolist():
            pieces = self._pieces(width)[self.starts[first : first + count]]
            padded[place : place + count * width].reshape(count, width)[...] = pieces
            first, place = first + count, place + count * width
        padding = np.repeat(widths, counts) - self.lengths
        # Behind a sample's tokens stand those of another: what is padding is few places, and is made so at once.
        padded[_places_of(np.cumsum(self.lengths + padding) - padding, padding)] = 0
        return padded

    def _pieces(self, width: int) -> NDArray[Any]:
        """Tokens from each place on. The array overlaps itself, and is not copied."""
        size, shape = self.tokens.itemsize, (len(self.tokens) - width + 1, width)
        return np.ndarray(shape, self.tokens.dtype, self.tokens, strides=(size, size))

    def separated_ids(self) -> NDArray[np.uint8]:
        """Their ids, UTF-8, each with the ledger's separator behind it."""
        return _gather(self.ids, self.id_starts, self.id_lengths)

    def compact(self) -> "Samples":
        """A copy whose tokens and ids are those of these samples alone, to be joined with others."""
        return Samples(
            self.rows, self.labels, self.lengths, _starts(self.lengths), self.numeric, self.categorical,
            _starts(self.id_lengths), self.id_lengths,
            _gather(self.tokens, self.starts, self.lengths),
            _gather(self.ids, self.id_starts, self.id_lengths),
        )  # fmt: skip


# What a window has one array each of; of these the long ones are shared by all samples, whatever their order.
FIELDS = tuple(Samples.__dataclass_fields__)
LONG_FIELDS = ("tokens", "ids")


def join(parts: Sequence[Samples]) -> Samples:
    """All samples of the parts, one after the other."""
    return Samples(**{name: np.concatenate(pieces) for name, pieces in pieces_of(parts).items()})


def pieces_of(parts: Sequence[Samples]) -> dict[str, list[NDArray[Any]]]:
    """For each field of the joined samples the arrays that, one after the other, are its own."""
    pieces = {name: [getattr(part, name) for part in parts] for name in FIELDS}
    for starts, long in (("starts", "tokens"), ("id_starts", "ids")):
        shifts = _starts(np.array([len(array) for array in pieces[long]]))
        pieces[starts] = [own + shift for own, shift in zip(pieces[starts], shifts, strict=True)]
    room = padded_length(max(int(lengths.max(initial=0)) for lengths in pieces["lengths"]))
    pieces["tokens"].append(np.zeros(room, dtype=pieces["tokens"][0].dtype))
    return pieces


def take(parts: Sequence[Samples], places: NDArray[np.int64]) -> Samples:
    """The samples at these places, in this order. The first place of a part follows the last one of the part before.

    Of all other samples no token and no id is touched.
    """
    if len(parts) == 1:
        return parts[0].at(places)
    firsts = _starts(np.array([len(part) for part in parts]))
    part_of = np.searchsorted(firsts, places, side="right") - 1
    taken = [part.at(places[part_of == i] - firsts[i]).compact() for i, part in enumerate(parts)]
    return join(taken).at(np.argsort(np.argsort(part_of, kind="stable")))


def padded_length(longest: int) -> int:
    """Tokens to which a leaf of one group is padded."""
    return -(-max(1, longest) // PADDING_MULTIPLE) * PADDING_MULTIPLE


# What `samples_of` asks for: a sample's length follows from its tokens.
COLUMNS = ["id", "label", "tokens", "numeric", "missing", "categorical"]


def samples_of(table: pa.Table, first_row: int, num_numeric: int, num_categorical: int, token_type: Any) -> Samples:
    """The samples of a row group as it stands in a shard, to be joined with others.

    Raises what Arrow and NumPy raise for one that is damaged.
    """
    num_rows = table.num_rows
    tokens, offsets = _tokens(_array(table, "tokens"), token_type)
    ids, id_lengths = _with_separators(_array(table, "id"))
    values, missing = (_flat(table, name).reshape(num_rows, num_numeric) for name in ("numeric", "missing"))
    return Samples(
        rows=np.arange(first_row, first_row + num_rows),
        labels=_values(_array(table, "label")).astype(np.int64),
        lengths=np.diff(offsets),
        starts=offsets[:-1],
        numeric=np.concatenate([values, missing], axis=1).astype(np.float32),
        categorical=_flat(table, "categorical").reshape(num_rows, num_categorical).astype(np.int64),
        id_starts=_starts(id_lengths),
        id_lengths=id_lengths,
        tokens=tokens,
        ids=ids,
    )


def _tokens(column: pa.Array, token_type: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Tokens of all rows, and where those of each begin and of the last one end."""
    if pa.types.is_list(column.type):  # a data set of the format before
        return _values(column.values).astype(token_type), _values(column.offsets).astype(np.int64)
    data, offsets = _bytes(column)
    return data.view(token_type), offsets // np.dtype(token_type).itemsize


def _bytes(column: pa.StringArray | pa.BinaryArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of all values, not copied, and where those of each begin and of the last one end."""
    _, offset_buffer, data = column.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    values = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
    return values[offsets[0] : offsets[-1]], offsets.astype(np.int64) - offsets[0]


def _with_separators(ids: pa.StringArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Bytes of all ids, a separator behind each, and the number of bytes of each with it."""
    text, offsets = _bytes(ids)
    return np.insert(text, offsets[1:], ord(ID_SEPARATOR)), np.diff(offsets) + 1


def new_array(length: int, kind: Any) -> NDArray[Any]:
    """An array that is to be filled, from Arrow's own pool of memory.

    The system's would hand out new pages each time, and take as long for it as it takes to fill them.
    """
    buffer = pa.allocate_buffer(length * np.dtype(kind).itemsize)
    return np.frombuffer(buffer, dtype=kind)


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    starts: NDArray[np.int64] = np.cumsum(lengths) - lengths
    return starts


def _gather(values: NDArray[Any], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[Any]:
    """The pieces of `values` that begin at `starts`, one after the other."""
    pieces: NDArray[Any] = values[_places_of(starts, lengths)]
    return pieces


def _places_of(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The places of all elements of pieces that begin at `starts`."""
    return np.arange(lengths.sum()) + np.repeat(starts - _starts(lengths), lengths)


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
