"""litdata, as its README says: `optimize` into chunks, StreamingDataset, StreamingDataLoader."""

import argparse
from collections.abc import Iterator

from litdata import StreamingDataLoader, StreamingDataset, optimize

from tests.benchmarks.loaders.collating import collate
from tests.benchmarks.loaders.measuring import Padded, measure
from tests.benchmarks.loaders.peer_options import CHUNK_BYTES, parse_options, read_rows


def main() -> None:
    """Write, or measure an epoch."""
    options = parse_options()
    if options.rows is None:
        measure(lambda rank: _batches(options), options.ranks)
        return
    paths = sorted(options.rows.iterdir())
    optimize(read_rows, paths, output_dir=options.data, chunk_bytes=CHUNK_BYTES, num_workers=1, verbose=False)


def _batches(options: argparse.Namespace) -> Iterator[list[Padded]]:
    dataset = StreamingDataset(options.data, options.cache, shuffle=True, drop_last=False, seed=options.seed)
    for padded, _ in StreamingDataLoader(dataset, batch_size=options.batch_size, collate_fn=collate):
        yield [padded]


if __name__ == "__main__":
    main()
