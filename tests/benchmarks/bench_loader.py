"""`make bench-loader`: samples and tokens for a second of CPU time, padded and ready for the model, and how soon.

Our loader, with the configuration of the quality job, and four peers read the same rows in one run: at 1 and at 8
ranks, from a folder and from a bucket of Ceph behind a link of 100 Mbit/s with a round trip of 20 ms. What is compared
is measured one right after the other; a ratio is the median of the rounds' ratios, and of folder and bucket the
smaller one. CPU time is that of all ranks with all their threads, from the first batch on; what a rank takes until then
stands beside it. Ours is measured besides with row groups compared as an earlier version did, by the checksums of
their pages, and without any comparison, in turns; with `--hashes` that alone, from the folder, for which nothing is
downloaded. The last line is for machines: `name=value` pairs.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks.loaders.checked_by import HASHES, NOTHING, PAGES
from tests.benchmarks.loaders.peers import PEERS, ROOT, STREAMING, ensure_environment
from tests.benchmarks.loaders.site import Measured, Site
from training.data.order import SampleOrder, Window

# Eight windows of 16 row groups, all but full: a start near the end of an epoch reads no less than an early one.
ROWS = 133_700
QUICK_ROWS = 20_000
ROUNDS = 3
# Of peers that are not asked about in the last line.
FEW_ROUNDS = 1
# Peers have one, but ours is over too soon to be measured well. It fetches each epoch anew from the bucket.
OWN_EPOCHS = 3
# A few per cent are to be seen in it.
HASHED_EPOCHS = 12
STARTS = 7
COLD_STARTS = 2
RANKS = (1, 8)
OWN = "Holdfast"
CACHE_SHARE = 0.1

# Loader, whether from the bucket, number of ranks -> what each round found; a text in place of what cannot be measured.
Results = dict[tuple[str, bool, int], list[Measured] | str]


def main() -> None:
    """Prepare the rows, measure, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder if not given")
    parser.add_argument("--peers", type=Path, default=ROOT / "build/peers", help="environment of the peers, kept")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="few rows and one round: to try it out")
    parser.add_argument("--hashes", action="store_true", help="only what the hashes of row groups cost")
    options = parser.parse_args()
    num_rows = QUICK_ROWS if options.quick else options.rows
    if options.hashes:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            _print_pairs(_measure_hashes(Site(Path(folder), None, num_rows), options.rounds))
        return
    python = ensure_environment(options.peers.absolute())
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        site = Site(Path(folder), python, num_rows)
        results: Results = {}
        _measure_rates(site, results, False, 1 if options.quick else options.rounds)
        hashes = _measure_hashes(site, 1 if options.quick else options.rounds)
        starts = _measure_starts(site, 1 if options.quick else STARTS, bucket=False)
        with site.in_bucket():
            _measure_rates(site, results, True, 1 if options.quick else options.rounds)
            cold = _measure_starts(site, 1 if options.quick else COLD_STARTS, bucket=True)
            fetched = site.fetch_large()
            share = _share_fetched(site)
    console = Console(width=130, highlight=False)
    console.print(_rates_table(site, results))
    console.print(_starts_table(starts, cold, fetched))
    over = {ranks: min(_over_streaming(results, bucket, ranks) for bucket in (False, True)) for ranks in RANKS}
    coldest = max(statistics.median(seconds) for seconds in cold.values())
    pairs = {
        "loader_over_streaming": over[1],
        "loader_over_streaming_at_8": over[8],
        "padding_efficiency": _padding_efficiency(results),
        "resume_99_over_1": statistics.median(late / early for early, late in zip(*starts.values(), strict=True)),
        "cold_start_over_64_mb": coldest / fetched["seconds"],
        "bytes_per_epoch_over_dataset": share,
        **hashes,
    }
    _print_pairs(pairs)


def _print_pairs(pairs: dict[str, float]) -> None:
    print(" ".join(f"{name}={value:.3f}" for name, value in pairs.items()))


def _measure_hashes(site: Site, rounds: int) -> dict[str, float]:
    """Rows for a second of CPU time with hashes, relative to what it is without them; the median of the rounds."""
    ratios: dict[str, list[float]] = {PAGES: [], NOTHING: []}
    for number in range(rounds):
        print(f"hashes, round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        rates = {}
        for what in (HASHES, PAGES, NOTHING):
            rates[what] = _rate(site.run_own(1, HASHED_EPOCHS * site.steps_per_epoch, checked_by=what))
            print(f"  compared with {what}: {rates[what]:,.0f} rows/s", file=sys.stderr, flush=True)
        for what, found in ratios.items():
            found.append(rates[HASHES] / rates[what])
    return {f"hashes_over_{what}": statistics.median(found) for what, found in ratios.items()}


def _measure_rates(site: Site, results: Results, bucket: bool, rounds: int) -> None:
    for number in range(rounds):
        for ranks in RANKS:
            place = "bucket" if bucket else "folder"
            print(f"{place}, ranks: {ranks}, round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            own = site.run_own(ranks, OWN_EPOCHS * site.steps_per_epoch, bucket=bucket)
            _note(results, (OWN, bucket, ranks), own)
            for peer in PEERS:
                key = (peer.name, bucket, ranks)
                if bucket and peer.not_from_bucket:
                    results[key] = peer.not_from_bucket
                elif number < FEW_ROUNDS or peer is STREAMING:
                    try:
                        _note(results, key, site.run_peer(peer, ranks, bucket))
                    except subprocess.TimeoutExpired as error:
                        results[key] = f"not over after {error.timeout:.0f} s"


def _note(results: Results, key: tuple[str, bool, int], measured: Measured) -> None:
    found = results.setdefault(key, [])
    if isinstance(found, list):
        found.append(measured)


def _measure_starts(site: Site, times: int, bucket: bool) -> dict[float, list[float]]:
    """Seconds from opening the data set to the first batch, at 1 % and at 99 % of an epoch; nothing is decoded yet."""
    seconds: dict[float, list[float]] = {0.01: [], 0.99: []}
    for _ in range(times):
        for share, found in seconds.items():
            first_step = int(share * site.steps_per_epoch)
            found.append(site.run_own(1, 1, first_step, bucket)["start_seconds"])
    return seconds


def _share_fetched(site: Site) -> float:
    """Bytes that came through the link for each byte of the rows that an epoch decodes, with a small cache.

    The next epoch's first window is decoded before this one is over.
    """
    assert site.link is not None
    order = SampleOrder(site.num_rows, site.dataset.row_group_rows, site.config.train.seed)
    rows_ahead = len(order.window_rows(Window(1, 0)))
    before = site.link.bytes_back
    cache_bytes = int(CACHE_SHARE * site.num_bytes)
    site.run_own(1, site.steps_per_epoch, bucket=True, cache_bytes=cache_bytes)
    return (site.link.bytes_back - before) / site.num_bytes / (1 + rows_ahead / site.num_rows)


def _rate(measured: Measured, what: str = "rows") -> float:
    return float(measured[what] / measured["cpu_seconds"])


def _over_streaming(results: Results, bucket: bool, ranks: int) -> float:
    own, streaming = results[OWN, bucket, ranks], results[STREAMING.name, bucket, ranks]
    assert not isinstance(own, str)
    if isinstance(streaming, str):
        raise SystemExit(f"{STREAMING.name}: {streaming}.")
    pairs = zip(own, streaming, strict=True)
    return statistics.median(_rate(one) / _rate(other) for one, other in pairs)


def _padding_efficiency(results: Results) -> float:
    found = results[OWN, False, 1]
    assert not isinstance(found, str)
    return float(found[0]["tokens"] / found[0]["padded_tokens"])


def _rates_table(site: Site, results: Results) -> Table:
    title = (
        f"{site.num_rows:,} rows of {site.dataset.splits['train'].num_tokens / site.num_rows:.0f} tokens, "
        f"{site.num_bytes / 1e6:.0f} MB; for a second of CPU time, of each rank its own samples"
    )
    columns = ("from", "ranks", "loader", "rows/s", "tokens/s", "real tokens", "epoch in s", "CPU s to start")
    table = Table(*columns, title=title, box=None)
    for (name, bucket, ranks), found in sorted(results.items(), key=lambda item: item[0][1:]):
        place = ("bucket" if bucket else "folder", str(ranks), name)
        if isinstance(found, str):
            table.add_row(*place, found)
            continue
        rows, tokens = (statistics.median(_rate(one, what) for one in found) for what in ("rows", "tokens"))
        seconds = statistics.median(one["seconds"] * site.num_rows / one["rows"] for one in found)
        start = statistics.median(one["start_cpu_seconds"] for one in found) / ranks
        share = found[0]["tokens"] / found[0]["padded_tokens"]
        table.add_row(*place, f"{rows:,.0f}", f"{tokens / 1e6:.2f} M", f"{share:.3f}", f"{seconds:.1f}", f"{start:.2f}")
    return table


def _starts_table(starts: dict[float, list[float]], cold: dict[float, list[float]], fetched: Measured) -> Table:
    table = Table("first batch", "median s", "best s", title="Start to first batch, nothing decoded", box=None)
    for place, measured in (("folder", starts), ("bucket, nothing downloaded", cold)):
        for share, seconds in measured.items():
            name = f"at {share:.0%} of an epoch, {place}"
            table.add_row(name, f"{statistics.median(seconds):.2f}", f"{min(seconds):.2f}")
    table.add_row("fetching 64 MB from the bucket", f"{fetched['seconds']:.2f}")
    return table


if __name__ == "__main__":
    main()
