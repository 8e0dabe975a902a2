"""Hugging Face `datasets`: Parquet made into its memory-mapped Arrow files once, shuffled, read batch by batch."""

import argparse
from collections.abc import Iterator

from datasets import load_dataset, load_from_disk
from datasets.distributed import split_dataset_by_node

from tests.benchmarks.loaders.collating import pad
from tests.benchmarks.loaders.measuring import Padded, Rank, measure
from tests.benchmarks.loaders.peer_options import parse_options


def main() -> None:
    """Write, or measure an epoch."""
    options = parse_options()
    if options.rows is None:
        measure(lambda rank: _batches(options, rank), options.ranks)
        return
    paths = sorted(str(path) for path in options.rows.iterdir())
    load_dataset("parquet", data_files=paths, split="train", cache_dir=options.cache).save_to_disk(options.data)


def _batches(options: argparse.Namespace, rank: Rank) -> Iterator[list[Padded]]:
    shuffled = load_from_disk(options.data).shuffle(seed=options.seed, keep_in_memory=True).with_format("numpy")
    own = split_dataset_by_node(shuffled, rank.number, rank.size)
    for batch in own.iter(batch_size=options.batch_size):
        yield [pad(batch["tokens"])]


if __name__ == "__main__":
    main()
