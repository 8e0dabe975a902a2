"""Tokens that the unit `check` has decoded, for the unit `deal`: the source's lists are decoded once.

Invariant: they are a copy, on this machine alone. Where they are missing, damaged, or of other rows, the source is read
again: but for time nothing depends on them. So they need no sync, and may be removed before what came of them is kept.
"""

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.data.token_lists import take_lists
from tasks.data.units.place import Place
from tasks.data.units.records import unit_name

CRC = "tokens_crc"


def leave_tokens(place: Place, index: int, decoded: Sequence[pa.Table], folder: Path) -> int:
    """Leave a piece's ids and tokens, columns `id` and `tokens`; the CRC-32 that the record of `check` states."""
    sink = pa.BufferOutputStream()
    table = pa.concat_tables(decoded)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data, path = sink.getvalue(), folder / "tokens"
    path.write_bytes(data)
    place.brought.mkdir(parents=True, exist_ok=True)
    path.rename(_path_of(place, index))
    return zlib.crc32(data)


def take_tokens(place: Place, index: int) -> pa.Table | None:
    """A piece's ids and tokens as they were left, which are then gone; None if they are not what was left."""
    record, path = place.area.find(unit_name("check", index)), _path_of(place, index)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    path.unlink(missing_ok=True)  # another preparation of the same may have taken them meanwhile
    if record is None or record.get(CRC) != zlib.crc32(data):
        return None
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def tokens_of(ids: pa.Array, decoded: pa.Table) -> pa.ListArray | None:
    """The tokens of these rows, in their order; None unless they are exactly the rows that were decoded."""
    found = pc.index_in(ids, value_set=decoded.column("id").combine_chunks())
    if found.null_count or len(ids) != decoded.num_rows:
        return None
    order, tokens = found.to_numpy().astype(np.int64), decoded.column("tokens").combine_chunks()
    return tokens if np.array_equal(order, np.arange(len(order))) else take_lists(tokens, order)


def _path_of(place: Place, index: int) -> Path:
    return place.brought / f"tokens-{index:06d}.arrow"
