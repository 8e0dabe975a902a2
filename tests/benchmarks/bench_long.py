"""`make bench-long`: what reading a run of five days takes, beside a small one: time, memory, requests, bytes.

Both runs are written first, by the code that training uses, and not timed: into a folder, and into a bucket of an S3
server that the tests start (moto). Then each reader reads each run in a process of its own: seconds of processor time,
the most memory that it took beyond what it began with, requests to the store, and the bytes that came back. At last
`holdfast status` is run as a user runs it. The last line is for machines: `name=value` pairs.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import pytest
from rich.console import Console
from rich.table import Table

from storage.objects.addresses import open_store
from storage.objects.local_store import LocalStore
from storage.objects.store import Store
from tests.benchmarks.measured import measure
from tests.helpers.counted_requests import counting
from tests.helpers.long_readers import ALL_READERS
from tests.helpers.long_runs import RUN, LongRun, Size, write_long_run
from tests.helpers.s3_server import open_s3_store, running_s3_server, use_s3

SMALL = Size(steps=1_000, promotions=10, segments=2, log_bytes=10_000)
FIVE_DAYS = Size(steps=1_000_000, promotions=10_000, segments=60, log_bytes=64_000_000)
TIMES_OF_STATUS = 5
COLUMNS = ("reader", "of", "CPU s", "s", "more MB", "requests", "KB read", "names listed")


@dataclass(frozen=True)
class Taken:
    """What one reader took; or why it did not come to its end."""

    cpu_seconds: float = 0.0
    seconds: float = 0.0
    memory_bytes: int = 0
    requests: int = 0
    num_bytes: int = 0
    names: int = 0
    error: str | None = None


def main() -> None:
    """Write the runs, read them, print the tables."""
    options = _options()
    sizes = {"small": SMALL, "long": Size(options.steps, options.promotions, FIVE_DAYS.segments, FIVE_DAYS.log_bytes)}
    with tempfile.TemporaryDirectory(dir=options.folder) as name, ExitStack() as stack:
        for kind in options.stores:
            if kind == "s3":
                use_s3(stack.enter_context(pytest.MonkeyPatch.context()), stack.enter_context(running_s3_server()))
            runs = {of: _write(Path(name) / f"{kind}-{of}", kind, size) for of, size in sizes.items()}
            ratio = _time_status(runs)
            found = {(reader, of): _take(reader, run) for reader in ALL_READERS for of, run in runs.items()}
            _print(kind, found)
            of_long = [taken for (_, of), taken in found.items() if of == "long"]
            print(
                f"store={kind} status_ratio={ratio:.2f} "
                f"most_cpu_seconds={max(taken.cpu_seconds for taken in of_long):.1f} "
                f"most_memory_mb={max(taken.memory_bytes for taken in of_long) / 1e6:.0f}",
                flush=True,
            )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stores", nargs="+", choices=("folder", "s3"), default=("folder", "s3"))
    parser.add_argument("--steps", type=int, default=FIVE_DAYS.steps, help="of the long run; a report for each")
    parser.add_argument("--promotions", type=int, default=FIVE_DAYS.promotions, help="of the long run")
    parser.add_argument("--folder", type=Path, help="where runs are put; the default is TMPDIR")
    return parser.parse_args()


def _write(folder: Path, kind: str, size: Size) -> LongRun:
    folder.mkdir()
    store: Store = open_s3_store(folder) if kind == "s3" else LocalStore(folder / "store")
    began = time.monotonic()
    run = write_long_run(store, folder, size)
    took, on_disk = time.monotonic() - began, sum(path.stat().st_size for path in folder.rglob("progress.jsonl"))
    print(
        f"{store.address}: {size.steps:,} steps written in {took:.0f} s, their reports {on_disk / 1e6:.0f} MB on disk",
        flush=True,
    )
    return run


def _take(reader: str, run: LongRun) -> Taken:
    """Have a process of its own read the run."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(theirs, "w") as answer:
            answer.write(json.dumps(asdict(_measure(reader, run))))
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return Taken(**json.loads(text)) if text else Taken(error="killed")


def _measure(reader: str, run: LongRun) -> Taken:
    try:
        # A store of its own: what another reader has seen or fetched it does not know.
        own = run.opened_anew(open_store(run.store.address, run.paths.data_scratch.parent / "cache"))
        read = ALL_READERS[reader](own)
        before = psutil.Process().memory_info().rss
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from now on
        with counting(own.store) as counted:
            began, began_cpu = time.monotonic(), time.process_time()
            read()
            seconds, cpu_seconds = time.monotonic() - began, time.process_time() - began_cpu
        memory = max(0, _peak_bytes() - before)
        return Taken(cpu_seconds, seconds, memory, counted.num_requests, counted.num_bytes, counted.num_names)
    except Exception as error:  # noqa: BLE001 - it is what the table shows
        return Taken(error=f"{type(error).__name__}: {error}"[:200])


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (line for line in lines if line.startswith("VmHWM:"))
    return 1024 * int(peak.split()[1])


def _time_status(runs: dict[str, LongRun]) -> float:
    """Processor time of `holdfast status` for the long run, as a multiple of that for the small one."""
    seconds: dict[str, float] = {}
    for of, run in runs.items():
        command = ["sh", "-c", 'exec "$@" > /dev/null', "sh", sys.executable, "-m", "flows.cli", "status"]
        address = f"{run.store.address}/runs/{RUN}"
        found = (measure([*command, address], run.paths.scratch, dict(os.environ)) for _ in range(TIMES_OF_STATUS))
        seconds[of] = min(measured.cpu_seconds for measured in found)
        print(f"holdfast status of the {of} run: {seconds[of]:.2f} s of processor time", flush=True)
    return seconds["long"] / seconds["small"]


def _print(kind: str, found: dict[tuple[str, str], Taken]) -> None:
    table = Table(*COLUMNS, title=kind)
    for (reader, of), taken in found.items():
        if taken.error is not None:
            table.add_row(reader, of, taken.error)
            continue
        sizes = (taken.requests, round(taken.num_bytes / 1000), taken.names)
        cells = (f"{taken.cpu_seconds:.3f}", f"{taken.seconds:.2f}", f"{taken.memory_bytes / 1e6:.1f}")
        table.add_row(reader, of, *cells, *(f"{size:,}" for size in sizes))
    Console(width=130, highlight=False).print(table)


if __name__ == "__main__":
    main()
