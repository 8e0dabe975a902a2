"""Training samples of a data set, for an audit: lengths and ids, without reading a token.

Invariant: memory holds the samples that were asked for, and a row group for each shard that is being read.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.datasets import DatasetManifest, dataset_key
from storage.objects.store import Store
from tasks.audits.shard_columns import COLUMNS_SCHEMA, ShardColumns

SAMPLES_SCHEMA = pa.schema([pa.field("row", pa.int64()), *COLUMNS_SCHEMA])
# A request to a bucket takes as long as some hundred KiB, and a column of a row group is less.
NUM_STREAMS = 8


class AuditedSamples:
    """The training split's rows, by their index; columns of shards are kept in `folder`, which is the audit's own."""

    def __init__(self, store: Store, dataset: DatasetManifest, folder: Path) -> None:
        split = dataset.splits["train"]
        self.num_rows = split.num_rows
        self._group_rows = dataset.row_group_rows
        self._shards = [
            ShardColumns(store, dataset_key(dataset.digest, shard.name), shard, folder / f"{index}.arrow")
            for index, shard in enumerate(split.shards)
        ]
        self._starts = np.array([*accumulate((shard.num_rows for shard in split.shards), initial=0)])
        self._kept: set[int] = set()

    def read(self, rows: NDArray[np.int64]) -> pa.Table:
        """Columns row, id and length of these rows, in rising order, each once.

        Rows that the split does not have are left out. Raises `CorruptObjectError`, `StoreError`, and
        `ConfigurationError` if the folder has no room.
        """
        rows = np.sort(rows[(rows >= 0) & (rows < self.num_rows)])
        rows = rows[np.diff(rows, prepend=-1) > 0]
        shards = np.searchsorted(self._starts, rows, side="right") - 1
        begins = np.flatnonzero(np.diff(shards, prepend=-1))
        wanted = dict(zip(shards[begins].tolist(), np.split(rows, begins)[1:], strict=True))
        self._keep(wanted.keys() - self._kept)
        batches = (batch for shard, own in wanted.items() for batch in self._read_shard(shard, own))
        return pa.Table.from_batches(batches, SAMPLES_SCHEMA)

    def find_ids(self, rows: Sequence[int]) -> dict[int, str]:
        """The ids of rows; those that the training split does not have are left out."""
        table = self.read(np.array(rows, np.int64))
        return dict(zip(table.column("row").to_pylist(), table.column("id").to_pylist(), strict=True))

    def _read_shard(self, shard: int, rows: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """These rows of a shard, a row group at a time."""
        groups, offsets = np.divmod(rows - self._starts[shard], self._group_rows)
        begins = np.flatnonzero(np.diff(groups, prepend=-1))
        chunks = zip(np.split(rows, begins)[1:], np.split(offsets, begins)[1:], strict=True)
        for (own, at), batch in zip(chunks, self._shards[shard].read(groups[begins].tolist()), strict=True):
            yield pa.record_batch([pa.array(own), *batch.take(pa.array(at)).columns], schema=SAMPLES_SCHEMA)

    def _keep(self, shards: set[int]) -> None:
        """Bring what is needed of these shards, some at a time."""
        if not shards:
            return
        with ThreadPoolExecutor(NUM_STREAMS, thread_name_prefix="audited-shards") as pool:
            try:
                for _ in pool.map(lambda shard: self._shards[shard].keep(), sorted(shards)):
                    pass
            except BaseException:
                pool.shutdown(cancel_futures=True)  # what waits is not begun any more
                raise
        self._kept |= shards
