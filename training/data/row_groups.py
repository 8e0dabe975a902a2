"""Row groups of a split's shards, each read by itself: no shard is read whole, from a bucket as from a folder.

Invariant: what is read of a row group are exactly its bytes, by one request; and of a shard its footer, once for all
who share the folder, where it is kept on local disk. No sample is made of other bytes than those that were published:
each row group is compared with its hash, so the checksums of its pages need not be. Memory holds a few row groups as
they stand in the shards, and nothing that grows with their number.
"""

import io
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.datasets import DatasetManifest, dataset_key, token_type
from storage.errors import CorruptObjectError
from storage.objects.local_store import explain_unreadable
from storage.objects.store import Store
from training.data.footers import Footer, Footers, range_of, read_exactly, require_same
from training.data.lookahead import look_ahead
from training.data.samples import COLUMNS, Samples, samples_of

# A request takes as long as some hundred KiB, so several are under way, and each has a row group in memory.
NUM_STREAMS = 4
# By the thread that decodes: it has all bytes, and others would only be waited for.
READ_OPTIONS: dict[str, Any] = {"page_checksum_verification": False, "pre_buffer": False}


@dataclass(frozen=True)
class _Location:
    """Location of a row group: its shard, its index in that, and its first row in the split."""

    shard: int
    index: int
    first_row: int


class RowGroups:
    """The row groups of `split`, by their numbers in it, with footers in `folder`. Threads may share it."""

    def __init__(self, store: Store, dataset: DatasetManifest, split: str, folder: Path) -> None:
        self.num_rows = dataset.splits[split].num_rows
        self.group_rows = dataset.row_group_rows
        self._store = store
        self._digest = dataset.digest
        self._shards = dataset.splits[split].shards
        self._shard_starts = [0, *accumulate(shard.num_rows for shard in self._shards)]
        self._sizes = (len(dataset.target.classes), len(dataset.numeric), len(dataset.categorical))
        self._token_type = np.dtype(token_type(dataset.vocabulary_size))
        self._from_folder = Footers(store, self.group_rows, folder)
        self._footers: dict[int, Footer] = {}
        self._pool = ThreadPoolExecutor(NUM_STREAMS, thread_name_prefix="row-groups")

    def decode(self, groups: Sequence[int]) -> Iterator[Samples]:
        """The samples of each of these, while threads read the next ones. Raises `CorruptObjectError`, `StoreError`."""
        locations = [self._locate(group) for group in groups]
        footers = self._load_footers({location.shard for location in locations})
        chunks = look_ahead(
            self._pool, lambda location: self._read(location, footers[location.shard]), locations, NUM_STREAMS
        )
        for location, chunk in zip(locations, chunks, strict=True):
            yield self._decode(location, footers[location.shard], chunk)

    def _locate(self, group: int) -> _Location:
        first_row = group * self.group_rows
        shard = bisect_right(self._shard_starts, first_row) - 1
        return _Location(shard, (first_row - self._shard_starts[shard]) // self.group_rows, first_row)

    def _load_footers(self, shards: set[int]) -> dict[int, Footer]:
        """The footers of these shards. They stay in memory until others are loaded: to parse one takes its time."""
        known = self._footers
        missing = sorted(shards - known.keys())
        loaded = dict(zip(missing, self._pool.map(self._load_footer, missing), strict=True))
        self._footers = wanted = {shard: known.get(shard) or loaded[shard] for shard in shards}
        return wanted

    def _load_footer(self, shard: int) -> Footer:
        with self._explained(f"The footer of {self._address(shard)}"):
            return self._from_folder.load(self._key(shard), self._shards[shard])

    def _read(self, location: _Location, footer: Footer) -> "_Chunk":
        """A row group as it stands in its shard."""
        with self._explained(self._name(location)):
            start, end = range_of(footer.metadata.row_group(location.index))
            with self._store.open(self._key(location.shard)) as file:
                data = read_exactly(file, start, end)
            require_same(data, footer.hashes[location.index], self._name(location), self._store)
            return _Chunk(data, start)

    def _decode(self, location: _Location, footer: Footer, chunk: "_Chunk") -> Samples:
        with self._explained(self._name(location)):
            source = pa.PythonFile(chunk, mode="r")
            with pq.ParquetFile(source, metadata=footer.metadata, **READ_OPTIONS) as file:
                table = file.read_row_group(location.index, COLUMNS, use_threads=False)
            samples = samples_of(table, location.first_row, *self._sizes, self._token_type)
            if len(samples) != min(self.group_rows, self.num_rows - location.first_row):
                raise ValueError(f"it has {len(samples)} rows")
            return samples

    def _key(self, shard: int) -> str:
        return dataset_key(self._digest, self._shards[shard].name)

    def _address(self, shard: int) -> str:
        return f"{self._store.address}/{self._key(shard)}"

    def _name(self, location: _Location) -> str:
        return f"Row group {location.index} of {self._address(location.shard)}"

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno is None:  # Arrow's, of bytes that make no sense
                raise self._damaged(what, error) from error
            raise explain_unreadable(self._store.address, what, error) from error
        except (pa.ArrowException, ValueError, LookupError, AttributeError) as error:
            raise self._damaged(what, error) from error

    def _damaged(self, what: str, error: Exception) -> CorruptObjectError:
        return CorruptObjectError(
            f"{what} cannot be read: {error}. Run `holdfast scrub` with the store's address {self._store.address}: "
            "it reads what the store has, and reports whether the data set is damaged and what to do. If it is not, "
            "this machine's disk or its memory is: use another machine, or set scratch, or TMPDIR, to a folder on "
            "another disk."
        )


class _Chunk:
    """A part of a file, for Arrow, which reads it at the offsets that it has in the file."""

    def __init__(self, data: memoryview, start: int) -> None:
        self.closed = False
        self._data = data
        self._start = start
        self._position = start

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        end = self._start + len(self._data)
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: end}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, num_bytes: int) -> memoryview:
        """The next bytes, not copied."""
        first = self._position - self._start
        if first < 0:
            raise ValueError("its columns do not follow each other")
        part = self._data[first : first + num_bytes]
        self._position += len(part)
        return part

    def close(self) -> None:
        self.closed = True
