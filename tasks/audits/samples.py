"""What the data set says of its training samples: lengths and ids, without reading a token.

Invariant: a shard that is not as it was published is an error of its own, never taken for a fault of the ledger.
"""

import contextlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from storage.datasets import DatasetManifest, dataset_key
from storage.errors import CorruptObjectError
from storage.objects.store import Store

IDS_SCHEMA = pa.schema({"row": pa.int64(), "id": pa.string()})


class AuditedSamples:
    """The training split's rows, by their index."""

    def __init__(self, store: Store, dataset: DatasetManifest) -> None:
        split = dataset.splits["train"]
        self.num_rows = split.num_rows
        self.group_rows = dataset.row_group_rows
        self._store = store
        self._shards = [(dataset_key(dataset.digest, shard.name), shard.num_rows) for shard in split.shards]
        self._starts = list(accumulate((num_rows for _, num_rows in self._shards), initial=0))

    def read_lengths(self) -> NDArray[np.int32]:
        """Number of tokens of every row, [N]. Raises `CorruptObjectError`."""
        lengths = np.empty(self.num_rows, dtype=np.int32)
        for (key, num_rows), start in zip(self._shards, self._starts, strict=False):
            with _open_shard(self._store.fetch(key), num_rows) as file:
                lengths[start : start + num_rows] = file.read(columns=["length"]).column("length").to_numpy()
        return lengths

    def read_ids(self, groups: Iterable[int]) -> pa.Table:
        """Columns row and id of these row groups, as far as the split has them. Raises `CorruptObjectError`.

        The rows of a stretch of steps are those of few row groups, so reading these is much less than reading all.
        """
        there = sorted(group for group in groups if 0 <= group * self.group_rows < self.num_rows)
        return pa.Table.from_batches(self._read_groups(there), IDS_SCHEMA)

    def find_ids(self, rows: Iterable[int]) -> dict[int, str]:
        """The ids of rows; those that the training split does not have are left out."""
        there = {row for row in rows if 0 <= row < self.num_rows}
        table = self.read_ids({row // self.group_rows for row in there})
        chosen = table.filter(pc.is_in(table.column("row"), pa.array(sorted(there), pa.int64())))
        return dict(zip(chosen.column("row").to_pylist(), chosen.column("id").to_pylist(), strict=True))

    def _read_groups(self, groups: list[int]) -> Iterator[pa.RecordBatch]:
        for shard, own in groupby(groups, lambda group: bisect_right(self._starts, group * self.group_rows) - 1):
            (key, num_rows), start = self._shards[shard], self._starts[shard]
            with _open_shard(self._store.fetch(key), num_rows) as file:
                for group in own:
                    first = group * self.group_rows
                    ids = file.read_row_group((first - start) // self.group_rows, columns=["id"]).column("id")
                    rows = np.arange(first, first + len(ids))
                    yield pa.record_batch([pa.array(rows), ids.combine_chunks()], schema=IDS_SCHEMA)


@contextlib.contextmanager
def _open_shard(path: Path, num_rows: int) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            if file.metadata.num_rows != num_rows:
                raise ValueError(f"it has {file.metadata.num_rows:,} rows, {num_rows:,} expected")
            yield file
    except (OSError, pa.ArrowException, ValueError, LookupError) as error:
        raise CorruptObjectError(
            f"The shard {path} cannot be read: {error}. It was changed after it was published. "
            "Restore it from a backup of the store, then audit again."
        ) from error
