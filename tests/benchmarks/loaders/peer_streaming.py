"""MosaicML Streaming (`streaming-community`), as its quick start says: MDS files, StreamingDataset, DataLoader."""

import tests.benchmarks.loaders.no_torchvision  # noqa: F401 - has to come before streaming

# isort: split
import argparse
from collections.abc import Iterator

import torch.distributed as dist
from streaming import MDSWriter, StreamingDataset
from torch.utils.data import DataLoader

from tests.benchmarks.loaders.collating import collate
from tests.benchmarks.loaders.measuring import Padded, Rank, measure
from tests.benchmarks.loaders.peer_options import CHUNK_BYTES, parse_options, read_rows

# Shapes that are the same for all rows are not written with each of them.
COLUMNS = {
    "tokens": "ndarray:uint16",
    "label": "int",
    "numeric": "ndarray:float32:4",
    "categorical": "ndarray:int64:3",
}


def main() -> None:
    """Write, or measure an epoch."""
    options = parse_options()
    if options.rows is None:
        measure(lambda rank: _batches(options), options.ranks, _join)
        return
    with MDSWriter(out=options.data, columns=COLUMNS, size_limit=CHUNK_BYTES) as writer:
        for path in sorted(options.rows.iterdir()):
            for row in read_rows(path):
                writer.write(row)


def _join(rank: Rank) -> None:
    """It asks torch who it is, and would do this itself."""
    if rank.size > 1:
        dist.init_process_group("gloo")


def _batches(options: argparse.Namespace) -> Iterator[list[Padded]]:
    is_remote = options.data.startswith("s3://")
    dataset = StreamingDataset(
        remote=options.data if is_remote else None,
        local=options.cache if is_remote else options.data,
        shuffle=True,
        shuffle_seed=options.seed,
        batch_size=options.batch_size,
    )
    for padded, _ in DataLoader(dataset, batch_size=options.batch_size, collate_fn=collate):
        yield [padded]


if __name__ == "__main__":
    main()
