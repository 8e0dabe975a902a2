"""Holdfast's own loader, put together as a segment does it: the leaves of each step, windows shared by the ranks.

Invariant: it is the product's code and its defaults; what is changed for a measurement is an option here.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from storage.datasets import load_dataset
from storage.objects import download_cache
from storage.objects.addresses import open_store
from storage.objects.download_cache import DownloadCache
from storage.objects.s3.address import parse_s3_address
from storage.objects.s3.connection import connect
from storage.objects.s3.store import S3Store
from storage.objects.store import Store
from tasks.settings.reading import load_configuration
from tests.benchmarks.loaders.measuring import Padded, Rank, measure
from training.batches.leaves import leaf_cut
from training.batches.source import BatchSource
from training.data.order import SampleOrder
from training.data.reading import SampleReader
from training.world import World

QUALITY = Path(__file__).parents[3] / "deployments/configs/quality.toml"


def main() -> None:
    """Measure some steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--digest", required=True)
    parser.add_argument("--scratch", type=Path, required=True, help="an empty folder for windows and downloads")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--first-step", type=int, default=0)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--cache-bytes", type=int, help="limit of the downloads that are kept")
    options = parser.parse_args()
    measure(lambda rank: _batches(options, rank), options.ranks, in_step=True)


def _open_store(address: str, cache: Path, limit_bytes: int | None) -> Store:
    """With a limit, downloads leave the cache as soon as it is full, though they were used minutes ago.

    An epoch takes hours elsewhere; here ten minutes, for which they would stay, are longer than the measurement.
    """
    if limit_bytes is None:
        return open_store(address, cache)
    download_cache.IN_USE_SECONDS = 0
    return S3Store(connect(parse_s3_address(address)), DownloadCache(cache, limit_bytes))


def _batches(options: argparse.Namespace, rank: Rank) -> Iterator[list[Padded]]:
    config = load_configuration(QUALITY, [])
    train = config.train
    store = _open_store(options.store, options.scratch / "cache", options.cache_bytes)
    dataset = load_dataset(store, options.digest)
    reader = SampleReader(store, dataset, "train", options.scratch / "samples", looks_ahead=True)
    order = SampleOrder(reader.num_rows, reader.group_rows, train.seed)
    world = World(rank.number, rank.size, rank.number, rank.size)
    source = BatchSource(reader, order, leaf_cut(config.model, train), train.batch_size, train.leaves, world, pin=False)
    end = options.first_step + options.steps
    for batch in source.read_ahead(options.first_step, end, train.prefetch_steps):
        yield [Padded(leaf.tokens.numpy(), leaf.lengths.numpy()) for leaf in batch.leaves]


if __name__ == "__main__":
    main()
