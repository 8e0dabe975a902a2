"""torchdata's StatefulDataLoader over rows of Parquet that are held in memory: the least that it can cost."""

import argparse
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq
from torch.utils.data import Dataset, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.benchmarks.loaders.collating import collate
from tests.benchmarks.loaders.measuring import Padded, Rank, measure
from tests.benchmarks.loaders.peer_options import parse_options


class ParquetRows(Dataset[dict[str, Any]]):
    """The rows of a folder of Parquet files, by their number."""

    def __init__(self, folder: str) -> None:
        table = pq.read_table(folder).combine_chunks()
        self._columns = {name: table.column(name).chunk(0) for name in table.column_names}
        self._labels = self._columns.pop("label").to_numpy()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row: dict[str, Any] = {name: column[index].values.to_numpy() for name, column in self._columns.items()}
        return row | {"label": self._labels[index]}


def main() -> None:
    """It reads the Parquet as it is: there is nothing to write. Measure an epoch."""
    options = parse_options()
    if options.rows is None:
        measure(lambda rank: _batches(options, rank), options.ranks)


def _batches(options: argparse.Namespace, rank: Rank) -> Iterator[list[Padded]]:
    rows = ParquetRows(options.data)
    sampler: DistributedSampler[Any] = DistributedSampler(rows, rank.size, rank.number, shuffle=True, seed=options.seed)
    for padded, _ in StatefulDataLoader(rows, options.batch_size, sampler=sampler, collate_fn=collate):
        yield [padded]


if __name__ == "__main__":
    main()
