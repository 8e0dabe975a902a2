"""The training split of a prepared data set as plain Parquet, from which each peer makes what it reads."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from storage.datasets import DatasetManifest, dataset_key, token_type
from storage.objects.store import Store

ROW_GROUP_ROWS = 1024


def write_rows(store: Store, dataset: DatasetManifest, folder: Path) -> None:
    """One file for each shard: tokens as uint16 where they are no larger, label, numeric with flags, categorical."""
    folder.mkdir(parents=True)
    for shard in dataset.splits["train"].shards:
        table = pq.read_table(store.fetch(dataset_key(dataset.digest, shard.name)))
        pq.write_table(_plain(table, dataset), folder / shard.name, ROW_GROUP_ROWS, compression="zstd")


def _plain(table: pa.Table, dataset: DatasetManifest) -> pa.Table:
    data, kind = table.column("tokens").combine_chunks(), token_type(dataset.vocabulary_size)
    tokens = np.frombuffer(b"".join(data.to_pylist()), kind)
    offsets = np.concatenate([[0], np.cumsum(table.column("length").to_numpy())]).astype(np.int32)
    parts = [_matrix(table, name, len(dataset.numeric)) for name in ("numeric", "missing")]
    numeric = np.concatenate(parts, axis=1).astype(np.float32)
    categorical = _matrix(table, "categorical", len(dataset.categorical)).astype(np.int64)
    return pa.table(
        {
            "tokens": pa.ListArray.from_arrays(offsets, tokens),
            "label": table.column("label").cast(pa.int64()),
            "numeric": pa.FixedSizeListArray.from_arrays(pa.array(numeric.ravel()), numeric.shape[1]),
            "categorical": pa.FixedSizeListArray.from_arrays(pa.array(categorical.ravel()), categorical.shape[1]),
        }
    )


def _matrix(table: pa.Table, column: str, width: int) -> NDArray[Any]:
    return np.asarray(table.column(column).combine_chunks().flatten()).reshape(table.num_rows, width)
