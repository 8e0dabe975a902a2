"""Holdfast's own loader, put together as a segment does it: microbatches of each step, in blocks shared by the ranks.

Invariant: it is the product's code and its defaults; what is changed for a measurement is an option here.
"""

import argparse
import gc
import time
from collections.abc import Iterator
from pathlib import Path

from storage.datasets import load_dataset
from storage.objects import download_cache
from storage.objects.addresses import open_store
from storage.objects.download_cache import DownloadCache
from storage.objects.s3.address import parse_s3_address
from storage.objects.s3.connection import S3Connection
from storage.objects.s3.store import S3Store
from storage.objects.store import Store
from tasks.config.load import load_configuration
from tests.benchmarks.loaders.checked_by import HASHES, NOTHING, PAGES, AssemblingAhead, check_by
from tests.benchmarks.loaders.measuring import Padded, Rank, measure
from tests.helpers.specifications import spec_of
from training.batches.source import open_source
from training.models.source import microbatch_cut
from training.spec import ResumePoint
from training.world import World

QUALITY = Path(__file__).parents[3] / "deployments/configs/quality.toml"
# Imports are not measured, of no loader. The process does not say when it has made its own; on two cores it takes 1 s.
LOADING_SECONDS = 5


class Loader:
    """What a rank is measured with."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._ahead: AssemblingAhead | None = None

    def prepare(self, rank: Rank) -> None:
        """Start the process that assembles ahead, as a segment does when it begins, and let it load its libraries."""
        if rank.number == 0:
            self._ahead = AssemblingAhead(self._options.checked_by)
            time.sleep(LOADING_SECONDS)  # the other ranks wait for this one

    def batches(self, rank: Rank) -> Iterator[list[Padded]]:
        """The microbatches of each step."""
        options, config = self._options, load_configuration(QUALITY, [])
        train, end_step = config.train, options.first_step + options.steps
        scratch = options.scratch
        store = _open_store(options.store, scratch / "cache", options.cache_bytes)
        dataset = load_dataset(store, options.digest)
        resume = ResumePoint(path="", digest="", step=options.first_step)
        train = train.model_copy(update={"steps": end_step})
        cache = str(scratch / "cache")
        spec = spec_of(options.store, dataset, scratch, config.model, train, cache=cache, resume=resume)
        world = World(rank.number, rank.size, rank.number, rank.size)
        cut = microbatch_cut(spec.model, spec.train)
        source = open_source(spec, world, store, dataset, cut, pin=False, ahead=self._ahead)
        gc.freeze()  # as a segment does
        for batch in source.batches(options.first_step, end_step):
            yield [Padded(microbatch.tokens.numpy(), microbatch.lengths.numpy()) for microbatch in batch.microbatches]


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
    parser.add_argument("--checked-by", choices=(HASHES, PAGES, NOTHING), default=HASHES)
    options = parser.parse_args()
    check_by(options.checked_by)
    loader = Loader(options)
    measure(loader.batches, options.ranks, loader.prepare, in_step=True)


def _open_store(address: str, cache: Path, limit_bytes: int | None) -> Store:
    """With a limit, downloads leave the cache as soon as it is full, though they were used minutes ago.

    An epoch takes hours elsewhere; here ten minutes, for which they would stay, are longer than the measurement.
    """
    if limit_bytes is None:
        return open_store(address, cache)
    download_cache.IN_USE_SECONDS = 0
    return S3Store(S3Connection(parse_s3_address(address)), DownloadCache(cache, limit_bytes))


if __name__ == "__main__":
    main()
