"""A shard: one row per sample in row groups of exact size, as Parquet.

A row's tokens are one binary value, the bytes of the ids one after the other (`token_type`, little-endian): a list
would be read number by number, these bytes are copied. Invariant: how the rows arrived does not show in the file's
bytes. The footer has the SHA-256 of each row group, so that by the footer's own each row group can be judged alone.
"""

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.datasets import GROUP_HASHES_KEY, ShardRecord

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=False))


# Of a target with one label a row.
SHARD_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("label", pa.int32(), nullable=False),
        pa.field("tokens", pa.binary(), nullable=False),
        pa.field("length", pa.int32(), nullable=False),  # number of tokens: known without reading them
        pa.field("numeric", _list_of(pa.float32()), nullable=False),
        pa.field("missing", _list_of(pa.float32()), nullable=False),
        pa.field("categorical", _list_of(pa.int32()), nullable=False),
    ]
)


# Few distinct values: a dictionary pays. What is all different is written as it is, and the tokens' lengths before
# their bytes, which can then be copied at once. LZ4 costs next to nothing where it saves nothing.
OF_LISTS = [f"{name}.list.element" for name in ("label", "numeric", "missing", "categorical")]
WITH_DICTIONARY = ["label", "weight", *OF_LISTS]
ENCODINGS = {"tokens": "DELTA_LENGTH_BYTE_ARRAY"}
COMPRESSION = {"id": "zstd", "length": "zstd", "tokens": "lz4"} | dict.fromkeys(WITH_DICTIONARY, "zstd")


def shard_schema(label_type: pa.DataType, has_weights: bool = False) -> pa.Schema:
    """The columns of a shard whose labels are of this type, with a weight of each row where rows have one."""
    is_list = pa.types.is_list(label_type)
    field = pa.field("label", _list_of(label_type.value_type) if is_list else label_type, nullable=False)
    schema = SHARD_SCHEMA.set(SHARD_SCHEMA.get_field_index("label"), field)
    return schema.append(pa.field("weight", pa.float32(), nullable=False)) if has_weights else schema


class ShardFile:
    """A context manager that writes a shard in row groups of so many rows."""

    def __init__(self, path: Path, row_group_rows: int, schema: pa.Schema = SHARD_SCHEMA) -> None:
        self._file = _HashedFile(path)
        # Checksums of pages: for readers of some columns alone, such as an audit.
        self._writer = pq.ParquetWriter(
            self._file,
            schema,
            compression=COMPRESSION,
            use_dictionary=WITH_DICTIONARY,
            write_statistics=[name for name in COMPRESSION if name != "tokens"],  # else whole rows stand in the footer
            column_encoding=ENCODINGS,
            write_page_checksum=True,
        )
        self._file.end_part()  # the magic bytes
        self._row_group_rows = row_group_rows
        self._group_hashes: list[str] = []
        self._footer_sha256 = ""
        self.num_rows = 0
        self.num_tokens = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _: TracebackType | None
    ) -> None:
        with self._file:
            self._writer.add_key_value_metadata({GROUP_HASHES_KEY: "".join(self._group_hashes)})
            self._writer.close()
            self._footer_sha256 = self._file.end_part()

    def write(self, rows: pa.Table) -> None:
        """Write whole row groups, or those at the end, as `whole_row_groups` made them."""
        for first in range(0, rows.num_rows, self._row_group_rows):
            self._writer.write_table(rows.slice(first, self._row_group_rows), row_group_size=self._row_group_rows)
            self._group_hashes.append(self._file.end_part())
        self.num_rows += rows.num_rows
        self.num_tokens += pc.sum(rows.column("length")).as_py()

    def record(self, name: str) -> ShardRecord:
        """Its entry in `dataset.json`, once it is written."""
        hashes = {"sha256": self._file.sha256, "footer_sha256": self._footer_sha256}
        return ShardRecord(name=name, num_rows=self.num_rows, num_bytes=self._file.num_bytes, **hashes)


class _HashedFile(io.RawIOBase):
    """A file that is written from its beginning to its end: its hash, and those of its parts."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._whole, self._part = hashlib.sha256(), hashlib.sha256()
        self.num_bytes = 0

    @property
    def sha256(self) -> str:
        return self._whole.hexdigest()

    def end_part(self) -> str:
        """SHA-256 of what was written since the last part ended."""
        part, self._part = self._part, hashlib.sha256()
        return part.hexdigest()

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer") -> int:
        num_bytes = self._file.write(data)
        self._whole.update(data)
        self._part.update(data)
        self.num_bytes += num_bytes
        return num_bytes

    def close(self) -> None:
        self._file.close()
        super().close()


def whole_row_groups(
    parts: Iterable[pa.Table],
    row_group_rows: int,
    metadata: Mapping[str, Sequence[str]],
    schema: pa.Schema = SHARD_SCHEMA,
) -> Iterator[pa.Table]:
    """The rows as shards have them, always as many row groups as are complete, at the end what is left.

    `metadata` are the columns that have the values of each of the lists `numeric`, `missing` and `categorical`.
    """
    waiting: list[pa.Table] = []
    num_waiting = 0
    for part in parts:
        waiting.append(part)
        num_waiting += part.num_rows
        if num_waiting < row_group_rows:
            continue
        table = pa.concat_tables(waiting)
        whole = num_waiting - num_waiting % row_group_rows
        yield _shard_table([table.slice(0, whole)], metadata, schema)
        waiting, num_waiting = [table.slice(whole)] if whole < num_waiting else [], num_waiting - whole
    if waiting:
        yield _shard_table(waiting, metadata, schema)


def _shard_table(tables: list[pa.Table], metadata: Mapping[str, Sequence[str]], schema: pa.Schema) -> pa.Table:
    """One contiguous table: how the rows arrived must not show in the file's bytes."""
    table = pa.concat_tables(tables).combine_chunks()
    found = {name: table.column(name).chunk(0) for name in table.column_names}
    found |= {"tokens": _as_bytes(found["tokens"]), "length": pc.list_value_length(found["tokens"])}
    found |= {kind: _as_lists([found[name] for name in names], table.num_rows) for kind, names in metadata.items()}
    columns = [found[field.name].cast(field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _as_lists(columns: Sequence[pa.Array], num_rows: int) -> pa.ListArray:
    """A list of the columns' values for each row."""
    values = np.array([column.to_numpy() for column in columns] or [[]]).T.ravel()
    return pa.ListArray.from_arrays(np.arange(num_rows + 1, dtype=np.int32) * len(columns), values)


def _as_bytes(lists: pa.ListArray) -> pa.BinaryArray:
    """The bytes of each list's numbers."""
    size = lists.type.value_type.byte_width
    values, offsets = lists.flatten(), lists.offsets.to_numpy()
    data = values.buffers()[1].slice(values.offset * size, len(values) * size)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(lists), [None, pa.py_buffer((offsets - offsets[0]) * size), data]
    )
