"""Rows of one split of a prepared data set, read by their index.

Invariant: holds no position; a row's content depends on its index alone. Row groups are decoded whole and a bounded
number of them is remembered, since the order of samples stays within a window of row groups for a while.
"""

from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from storage.datasets import DatasetManifest, dataset_key
from storage.errors import CorruptObjectError
from storage.objects.store import Store
from training.data.order import WINDOW_GROUPS

# A batch may straddle two windows, and the next batch is read ahead.
CACHED_GROUPS = 2 * WINDOW_GROUPS + 1


@dataclass(frozen=True)
class Samples:
    """Some rows, not yet padded. N rows, K numeric and C categorical columns."""

    rows: NDArray[np.int64]  # [N] indices in the split
    ids: NDArray[np.object_]  # [N] text
    labels: NDArray[np.int64]  # [N]
    tokens: list[NDArray[np.int32]]  # N arrays of differing lengths
    numeric: NDArray[np.float32]  # [N, 2K]: values, then is-missing flags
    categorical: NDArray[np.int64]  # [N, C]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.fromiter((len(row) for row in self.tokens), dtype=np.int64, count=len(self.tokens))


class _RowGroup:
    """One decoded row group; token rows are slices of one flat array."""

    def __init__(self, table: pa.Table, num_numeric: int, num_categorical: int) -> None:
        num_rows = table.num_rows
        tokens = table.column("tokens").combine_chunks()
        self.ids: list[str] = table.column("id").to_pylist()
        self.labels = _values(table.column("label").combine_chunks()).astype(np.int64)
        self.offsets = _values(tokens.offsets)
        self.flat_tokens = _values(tokens.values)
        values = _flat(table, "numeric").reshape(num_rows, num_numeric)
        missing = _flat(table, "missing").reshape(num_rows, num_numeric)
        self.numeric = np.concatenate([values, missing], axis=1).astype(np.float32)
        self.categorical = _flat(table, "categorical").reshape(num_rows, num_categorical).astype(np.int64)

    def tokens(self, row: int) -> NDArray[np.int32]:
        tokens: NDArray[np.int32] = self.flat_tokens[self.offsets[row] : self.offsets[row + 1]]
        return tokens


class SampleReader:
    """Reads rows of `split`. Not for use by several threads at once."""

    def __init__(self, store: Store, dataset: DatasetManifest, split: str) -> None:
        record = dataset.splits[split]
        self.num_rows = record.num_rows
        self.group_rows = dataset.row_group_rows
        self._num_numeric = len(dataset.numeric)
        self._num_categorical = len(dataset.categorical)
        self._store = store
        self._keys = [dataset_key(dataset.digest, shard.name) for shard in record.shards]
        self._shard_starts = [0, *accumulate(shard.num_rows for shard in record.shards)]
        self._groups: OrderedDict[int, _RowGroup] = OrderedDict()

    def read(self, rows: NDArray[np.int64]) -> Samples:
        """The samples at these row indices, in this order."""
        places = [self._place(row) for row in rows.tolist()]
        return Samples(
            rows=rows,
            ids=np.array([group.ids[row] for group, row in places], dtype=object),
            labels=np.array([group.labels[row] for group, row in places], dtype=np.int64),
            tokens=[group.tokens(row) for group, row in places],
            numeric=np.stack([group.numeric[row] for group, row in places]),
            categorical=np.stack([group.categorical[row] for group, row in places]),
        )

    def _place(self, row: int) -> tuple[_RowGroup, int]:
        group, row_in_group = divmod(row, self.group_rows)
        return self._load_group(group), row_in_group

    def _load_group(self, group: int) -> _RowGroup:
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = self._decode(group)
            if len(self._groups) > CACHED_GROUPS:
                self._groups.popitem(last=False)
        else:
            self._groups.move_to_end(group)
        return found

    def _decode(self, group: int) -> _RowGroup:
        first_row = group * self.group_rows
        shard = bisect_right(self._shard_starts, first_row) - 1
        group_in_shard = (first_row - self._shard_starts[shard]) // self.group_rows
        path = self._store.fetch(self._keys[shard])
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                table = file.read_row_group(group_in_shard, use_threads=False)
            return _RowGroup(table, self._num_numeric, self._num_categorical)
        except (OSError, pa.ArrowException, ValueError, LookupError, AttributeError) as error:
            raise CorruptObjectError(
                f"Row group {group_in_shard} of {path} cannot be read: {error}. Run `holdfast scrub` with the store's "
                f"address {self._store.address}: it reads what the store has, and says whether the data set is damaged "
                "and what to do. If it is not, this machine's copy of the file, its disk or its memory is: use another "
                "machine, or set scratch, or TMPDIR, to a folder on another disk."
            ) from error


def _flat(table: pa.Table, column: str) -> NDArray[Any]:
    return _values(table.column(column).combine_chunks().flatten())


def _values(array: pa.Array) -> NDArray[Any]:
    """The values of an array without nulls, not copied. Arrow's own `to_numpy` would load pandas, in every rank."""
    return np.from_dlpack(array)
