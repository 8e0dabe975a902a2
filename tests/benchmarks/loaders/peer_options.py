"""What each peer is told on the command line: to write its own files from Parquet, or to read an epoch of them."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

# Of one file of those peers that cut their rows into files: a small data set has as many of them as ranks, and more.
CHUNK_BYTES = 8 << 20


def parse_options() -> argparse.Namespace:
    """`write`: rows -> data. Without it: data, cache, remote, ranks, batch_size (of one rank), seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=Path, help="folder of Parquet files; if given, files are written to --data")
    parser.add_argument("--data", required=True, help="the peer's own files: a folder, or s3://bucket/prefix")
    parser.add_argument("--cache", help="an empty folder for what is downloaded")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=1, help="samples of one rank's batch")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def read_rows(path: Path) -> Iterator[dict[str, object]]:
    """The rows of a Parquet file one by one: a whole number for the label, else arrays."""
    for batch in pq.ParquetFile(path).iter_batches():
        columns = batch.to_pydict()
        kinds = {"tokens": np.uint16, "numeric": np.float32, "categorical": np.int64}
        for place, label in enumerate(columns["label"]):
            yield {"label": label} | {name: np.array(columns[name][place], kind) for name, kind in kinds.items()}
