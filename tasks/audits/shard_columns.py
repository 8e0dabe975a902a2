"""The columns of a shard that an audit needs, brought to local disk once: ids and numbers of tokens.

Invariant: of the shard its footer and the chunks of these two columns are read, one by one, and nothing between them;
memory holds one row group. A shard that is not as it was published is an error of its own, never taken for a fault of
the ledger.
"""

import contextlib
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from storage.datasets import ShardRecord
from storage.errors import ConfigurationError, CorruptObjectError
from storage.objects.digests import sha256_of_bytes
from storage.objects.store import Store

COLUMNS_SCHEMA = pa.schema({"id": pa.string(), "length": pa.int32()})
# At the end of a Parquet file stand the length of the footer, in four bytes, and "PAR1".
END_BYTES = 8


@dataclass(frozen=True)
class ShardColumns:
    """Of the shard with this key; `path` is where they are kept, row group by row group."""

    store: Store
    key: str
    shard: ShardRecord
    path: Path

    def keep(self) -> None:
        """Bring them here. Raises `CorruptObjectError`, `StoreError`, and `ConfigurationError` if there is no room."""
        groups = self._fetch()
        try:
            with pa.OSFile(str(self.path), "wb") as target, pa.ipc.new_file(target, COLUMNS_SCHEMA) as writer:
                for group in groups:
                    writer.write_batch(group)
        except OSError as error:
            raise ConfigurationError(
                f"The ids of the data set cannot be kept in {self.path.parent}: {error}. Make room there, or set "
                "TMPDIR to a folder on a larger disk."
            ) from error

    def read(self, groups: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """These row groups, after `keep`."""
        with pa.OSFile(str(self.path)) as source, pa.ipc.open_file(source) as file:
            for group in groups:
                yield file.get_batch(group)

    def _fetch(self) -> Iterator[pa.RecordBatch]:
        """Every row group."""
        with (
            self._explained(),
            self.store.open(self.key) as source,
            self._open_parquet(source) as file,
        ):
            if file.metadata.num_rows != self.shard.num_rows:
                raise ValueError(f"it has {file.metadata.num_rows:,} rows, {self.shard.num_rows:,} expected")
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, COLUMNS_SCHEMA.names, use_threads=False)
                yield from table.cast(COLUMNS_SCHEMA).combine_chunks().to_batches()

    def _open_parquet(self, source: io.RawIOBase) -> pq.ParquetFile:
        # With pre_buffer Arrow would read what stands between two chunks too, where that is little.
        footer = pq.read_metadata(pa.BufferReader(_read_footer(source, self.shard)))
        return pq.ParquetFile(source, metadata=footer, pre_buffer=False, page_checksum_verification=True)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException, ValueError, LookupError) as error:
            raise CorruptObjectError(
                f"The shard {self.store.address}/{self.key} cannot be read: {error}. It was changed after it was "
                "published. Restore it from a backup of the store, then audit again."
            ) from error


def _read_footer(file: io.RawIOBase, shard: ShardRecord) -> bytes:
    """By its exact bytes: Arrow itself would read the last 64 KiB, whatever they are.

    Of another file footer or size differ; of one that was damaged, perhaps a page, which has a checksum of its own.
    """
    num_bytes = file.seek(0, io.SEEK_END)
    if num_bytes != shard.num_bytes:
        raise ValueError(f"it has {num_bytes:,} bytes, {shard.num_bytes:,} expected")
    end = _read_last(file, min(END_BYTES, num_bytes), num_bytes)
    length = END_BYTES + int.from_bytes(end[:4], "little")
    if length > num_bytes:
        raise ValueError("it has no footer")
    footer = _read_last(file, length, num_bytes)
    found = sha256_of_bytes(footer)
    if found != shard.footer_sha256:
        raise ValueError(f"its footer has SHA-256 {found[:16]}..., {shard.footer_sha256[:16]}... expected")
    return footer


def _read_last(file: io.RawIOBase, count: int, num_bytes: int) -> bytes:
    file.seek(num_bytes - count)
    return file.read(count) or b""
