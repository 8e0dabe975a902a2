"""The parts of buckets, which the unit `assign` leaves and the unit `shard` reads, and the tables of where they are.

A chunk's file has one part for each bucket, in their order, and behind them a table with an entry for each part. Once
all rows are assigned these tables are made one file, in which the entries of a bucket stand together.
Invariant: every part, and all entries that are read at once, are compared with a CRC-32. No process has the entries of
all chunks and buckets in memory, of which there are as many as chunks times buckets.
"""

import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.errors import ObjectMissingError
from tasks.configuration.run import DataConfig
from tasks.data.rows import METADATA, metadata_columns
from tasks.data.sources.label_registry import form_of
from tasks.data.token_lists import narrow_type, take_lists
from tasks.data.units.records import READING_THREADS, damaged, unit_name
from tasks.data.units.staging import Record, StagingArea
from tasks.data.units.workspace import settings_name

PLACE_BITS = 64
# Where in its chunk's file a part begins and ends, its rows, and its CRC-32; of an empty one there is no byte.
PART = np.dtype([("start", "<u8"), ("end", "<u8"), ("rows", "<u4"), ("crc", "<u4")])
TABLE_NAME = "parts-of-buckets"


@dataclass(frozen=True)
class Buckets:
    """All buckets, numbered through all splits: what a unit must know to find the parts of its own.

    `bits` is, for each split, by how many first bits of an order key its buckets differ. `rows` and `crcs` are of each
    bucket: its rows in all chunks, and the CRC-32 of its entries in the file `TABLE_NAME`.
    """

    num_chunks: int
    bits: list[int]
    rows: list[int]
    crcs: list[int]

    def of_split(self, split: int) -> range:
        """The numbers of a split's buckets."""
        first = num_buckets(self.bits[:split])
        return range(first, first + (1 << self.bits[split]))

    @property
    def rows_of_splits(self) -> list[int]:
        """How many rows each split has."""
        return [sum(self.rows[bucket] for bucket in self.of_split(split)) for split in range(len(self.bits))]


def part_schema(config: DataConfig, vocabulary_size: int) -> pa.Schema:
    """The columns of a row in a part."""
    tokens = pa.list_(narrow_type(vocabulary_size))
    metadata = [(name, METADATA[kind]) for kind, names in metadata_columns(config).items() for name in names]
    label = form_of(config).shard_type
    metadata += [("weight", pa.float32())] if config.weight else []
    return pa.schema([("id", pa.string()), ("label", label), ("tokens", tokens), *metadata, ("order_key", pa.uint64())])


def parts_name(index: int) -> str:
    """The name of the file with a chunk's parts."""
    return f"assign-{index:06d}.parts"


def num_buckets(bits: Sequence[int]) -> int:
    """How many buckets splits have whose order keys differ in so many first bits."""
    return sum(1 << of_split for of_split in bits)


def write_parts(rows: pa.Table, bits: list[int], path: Path) -> Record:
    """Write rows, a part for each bucket, and their table; where that begins, and its CRC-32.

    `rows` has the columns of `part_schema`, and `split`.
    """
    buckets = _buckets_of(rows.column("split").to_numpy(), rows.column("order_key").to_numpy(), bits)
    assignment = in_order(rows.drop_columns(["split"]), np.argsort(buckets, kind="stable"))
    table = np.zeros(num_buckets(bits), PART)
    table["rows"] = np.bincount(buckets, minlength=len(table))
    with path.open("xb") as file:
        for entry, (begin, end) in zip(table, pairwise(accumulate(table["rows"].tolist(), initial=0)), strict=True):
            entry["start"] = file.tell()
            if begin < end:
                (part,) = assignment.slice(begin, end - begin).to_batches()
                # Neither compressed, since it is read once more, nor with a schema, since there are very many of them.
                data = part.serialize()
                file.write(data)
                entry["crc"] = zlib.crc32(data)
            entry["end"] = file.tell()
        found = {"start": file.tell(), "crc": zlib.crc32(table.data)}
        file.write(table.data)
    return found


def gather_tables(
    staging: StagingArea, tables: Sequence[Record], bits: list[int], path: Path, most_bytes: int
) -> Buckets:
    """Write the entries of all chunks' tables to `path`, bucket after bucket, with so many bytes in memory at a time.

    `tables` are as `write_parts` gave them. Raises `CorruptObjectError` for a table that is not what was written.
    """
    total, at_a_time = num_buckets(bits), max(1, most_bytes // (len(tables) * PART.itemsize))
    buckets = Buckets(len(tables), bits, rows=[], crcs=[])
    with path.open("xb") as file, ThreadPoolExecutor(READING_THREADS, thread_name_prefix="tables") as pool:
        for first in range(0, total, at_a_time):
            entries = np.empty((min(at_a_time, total - first), len(tables)), PART)

            def take(chunk: int, first: int = first, entries: NDArray[np.void] = entries) -> None:
                entries[:, chunk] = _read_table(staging, chunk, tables[chunk], total)[first : first + len(entries)]

            list(pool.map(take, range(len(tables))))
            buckets.rows.extend(entries["rows"].sum(axis=1, dtype=np.int64).tolist())
            buckets.crcs.extend(zlib.crc32(of_bucket.data) for of_bucket in entries)
            file.write(entries.data)
    return buckets


def read_bucket(staging: StagingArea, buckets: Buckets, bucket: int, schema: pa.Schema) -> pa.Table:
    """The rows of a bucket, chunk after chunk. Raises `CorruptObjectError` for what is not as it was written."""
    entries = _entries_of(staging, buckets, bucket)
    chunks = np.flatnonzero(entries["rows"]).tolist()
    return pa.Table.from_batches([_read_part(staging, chunk, entries[chunk], schema) for chunk in chunks])


def order_of(rows: pa.Table) -> NDArray[np.int64]:
    """Rows by order key, and, where two hashes meet, by id."""
    order_keys = rows.column("order_key").to_numpy()
    order = np.argsort(order_keys)
    found = order_keys[order]
    if not np.any(found[1:] == found[:-1]):
        return order
    by_both = pc.sort_indices(
        rows.select(["order_key", "id"]), sort_keys=[("order_key", "ascending"), ("id", "ascending")]
    )
    return np.from_dlpack(by_both).astype(np.int64)


def in_order(rows: pa.Table, order: NDArray[np.int64]) -> pa.Table:
    """These rows in this order, each column in one chunk."""
    columns = [_in_order(column.combine_chunks(), order) for column in rows.columns]
    return pa.Table.from_arrays(columns, names=rows.schema.names)


def _in_order(column: pa.Array, order: NDArray[np.int64]) -> pa.Array:
    return take_lists(column, order) if pa.types.is_list(column.type) else column.take(pa.array(order))


def _buckets_of(
    splits: NDArray[np.int32], order_keys: NDArray[np.uint64], bits: list[int]
) -> NDArray[np.uint16 | np.uint32]:
    """The bucket of each row."""
    firsts = np.array([num_buckets(bits[:split]) for split in range(len(bits))], np.uint64)
    # A number may not be shifted by all of its bits.
    shifts = np.array([PLACE_BITS - max(1, of_split) for of_split in bits], np.uint64)
    within = (order_keys >> shifts[splits]) * np.array([of_split > 0 for of_split in bits])[splits]
    buckets: NDArray[np.uint64] = firsts[splits] + within
    # Numbers of 16 bits are sorted by counting them.
    return buckets.astype(np.uint16 if num_buckets(bits) <= 1 << 16 else np.uint32)


def _read_table(staging: StagingArea, chunk: int, written: Record, total: int) -> NDArray[np.void]:
    name, start = parts_name(chunk), written["start"]
    data = _read_range(staging, name, start, start + total * PART.itemsize)
    if zlib.crc32(data) != written["crc"]:
        raise damaged(staging, unit_name("assign", chunk), name)
    return np.frombuffer(data, PART)


def _entries_of(staging: StagingArea, buckets: Buckets, bucket: int) -> NDArray[np.void]:
    num_bytes = buckets.num_chunks * PART.itemsize
    data = _read_range(staging, TABLE_NAME, bucket * num_bytes, (bucket + 1) * num_bytes)
    if zlib.crc32(data) != buckets.crcs[bucket]:
        raise damaged(staging, settings_name("shard"), TABLE_NAME)
    return np.frombuffer(data, PART)


def _read_part(staging: StagingArea, chunk: int, entry: np.void, schema: pa.Schema) -> pa.RecordBatch:
    name = parts_name(chunk)
    data = _read_range(staging, name, int(entry["start"]), int(entry["end"]))
    if zlib.crc32(data) != entry["crc"]:
        raise damaged(staging, unit_name("assign", chunk), name)
    return pa.ipc.read_record_batch(data, schema)


def _read_range(staging: StagingArea, name: str, start: int, end: int) -> bytes:
    """The bytes of a file that was kept; of one that is gone none, which its CRC-32 then shows."""
    try:
        return staging.read_range(name, start, end)
    except (ObjectMissingError, FileNotFoundError):
        return b""
