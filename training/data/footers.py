"""The footers of a split's shards, and by them the SHA-256 that the bytes of each row group must have.

Invariant: a footer that is given out is the one that `dataset.json` vouches for, and it vouches for its row groups.
"""

import hashlib
import io
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.datasets import GROUP_HASHES_KEY, ShardRecord
from storage.errors import CorruptObjectError
from storage.objects.digests import sha256_of_bytes
from storage.objects.store import Store
from training.data.samples import new_array

# What the footers of our shards have, and for each row group in it. Of one that has more the rest is read too.
FOOTER_BYTES = 2 << 10
FOOTER_BYTES_PER_GROUP = 832
# At the end of a Parquet file stand the length of the footer, in four bytes, and "PAR1".
END_BYTES = 8
HASH_DIGITS = 64


@dataclass(frozen=True)
class Footer:
    """Footer of a shard; `hashes` has the SHA-256 of each row group's bytes, as hex digits."""

    metadata: pq.FileMetaData
    hashes: Sequence[str]


class Footers:
    """Footers of shards, kept in `folder` for all processes that read there. Threads may share it."""

    def __init__(self, store: Store, group_rows: int, folder: Path) -> None:
        self._store = store
        self._group_rows = group_rows
        self._folder = folder

    def load(self, key: str, shard: ShardRecord) -> Footer:
        """The footer of a shard. Raises `CorruptObjectError` if it is not the one that was published."""
        metadata = pq.read_metadata(pa.BufferReader(self._read(key, shard)))
        return Footer(metadata, _split_hashes(metadata.metadata[GROUP_HASHES_KEY].decode(), metadata))

    def _read(self, key: str, shard: ShardRecord) -> bytes:
        path = self._folder / f"{shard.name}.footer"
        with suppress(FileNotFoundError):
            kept = path.read_bytes()
            if sha256_of_bytes(kept) == shard.footer_sha256:
                return kept
        footer = self._fetch(key, shard)
        require_same(footer, shard.footer_sha256, f"The footer of {self._store.address}/{key}", self._store)
        with suppress(OSError):  # what is wrong with the folder is raised when a window is written to it
            _keep(footer, path)
        return footer

    def _fetch(self, key: str, shard: ShardRecord) -> bytes:
        num_groups = -(-shard.num_rows // self._group_rows)
        with self._store.open(key) as file:
            return _read_footer(file, FOOTER_BYTES + num_groups * FOOTER_BYTES_PER_GROUP)


def require_same(data: bytes | memoryview, sha256: str, what: str, store: Store) -> None:
    """Raise `CorruptObjectError` unless these bytes, `what` in words, have this hash."""
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise not_as_published(what, sha256, found, store)


def not_as_published(what: str, expected: str, found: str, store: Store) -> CorruptObjectError:
    """The error for bytes that have another hash than those that were published."""
    return CorruptObjectError(
        f"{what} is not what was published with the data set: SHA-256 {expected[:16]}... expected, {found[:16]}... "
        "found. The file was replaced or damaged since then. No sample of these bytes was used. Restore the file from "
        f"a backup of the store. Run `holdfast scrub` with the store's address {store.address}: it reads all files, "
        "and lists which others are damaged and what to do without a backup. If it finds none, this machine's disk or "
        "its memory is damaged: use another machine."
    )


def range_of(group: pq.RowGroupMetaData) -> tuple[int, int]:
    """The first byte of a row group and the one after its last: its columns follow each other."""
    chunks = [group.column(index) for index in range(group.num_columns)]
    starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
    ends = [start + chunk.total_compressed_size for start, chunk in zip(starts, chunks, strict=True)]
    return min(starts), max(ends)


def read_exactly(file: io.RawIOBase, start: int, end: int) -> memoryview:
    """The bytes from `start` up to `end`. Raises `ValueError` if the file has not all of them."""
    if not 0 <= start <= end <= file.seek(0, io.SEEK_END):
        raise ValueError(f"the file has no bytes {start:,} to {end:,}")
    file.seek(start)
    data = rest = new_array(end - start, np.uint8).data
    while rest:
        num_read = file.readinto(rest)
        if not num_read:
            raise ValueError("the file is shorter than it was")
        rest = rest[num_read:]
    return data


def _read_footer(file: io.RawIOBase, likely_bytes: int) -> bytes:
    """The end of a Parquet file, from the footer on. Footers that are not longer than that take one request."""
    num_bytes = file.seek(0, io.SEEK_END)
    likely_start = max(0, num_bytes - likely_bytes)
    end = bytes(read_exactly(file, likely_start, num_bytes))
    length = END_BYTES + int.from_bytes(end[-END_BYTES:-4], "little")
    if length > len(end):
        end = bytes(read_exactly(file, num_bytes - length, likely_start)) + end
    return end[-length:]


def _split_hashes(hashes: str, metadata: pq.FileMetaData) -> list[str]:
    found = [hashes[first : first + HASH_DIGITS] for first in range(0, len(hashes), HASH_DIGITS)]
    if len(found) != metadata.num_row_groups:
        raise ValueError(f"it has {len(found)} hashes for {metadata.num_row_groups} row groups")
    return found


def _keep(data: bytes, path: Path) -> None:
    """Write a file that is whole or not there, though others may write it too."""
    part = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        part.write_bytes(data)
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)
