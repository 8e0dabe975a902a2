"""`make bench-audit`: the audit of a run over one epoch of so many rows: time, memory and disk.

Data set and ledger are written first, and not timed. Then `holdfast audit` is run as a user runs it, from a folder, in
a process of its own. Memory is of all its processes; disk is what it puts where temporary files go. The last line is
for machines: `name=value` pairs, with the rate for the largest number of rows. Where others use the machine too, the
growth of the CPU time says more than that of the time.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from storage.objects.local_store import LocalStore
from tests.benchmarks.measured import Measured, growth_exponent, measure, num_bytes_in
from tests.helpers.synthetic_run import RUN, write_synthetic_run

ROWS = (100_000, 1_000_000)
COLUMNS = ("rows", "s", "CPU s", "rows/s", "peak MB", "temporary files MB", "shards MB", "ledger MB")


def main() -> None:
    """Write the runs, audit them, print the table."""
    options = _options()
    rows: list[int] = sorted(options.rows)
    table, found = Table(*COLUMNS), []
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        for num_rows in rows:
            folder = Path(name) / str(num_rows)
            found.append(_audit(folder, num_rows))
            table.add_row(*_cells(num_rows, found[-1], folder / "store"))
            shutil.rmtree(folder)
    Console(width=130, highlight=False).print(table)
    exponent = growth_exponent(rows, [measured.seconds for measured in found])
    cpu_exponent = growth_exponent(rows, [measured.cpu_seconds for measured in found])
    print(
        f"audit_rows_per_second={rows[-1] / found[-1].seconds:.0f} growth_exponent={exponent:.3f} "
        f"cpu_growth_exponent={cpu_exponent:.3f} peak_mb_at_largest={found[-1].memory_bytes / 1e6:.0f}"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="numbers of rows")
    parser.add_argument("--folder", type=Path, help="where runs are put; the default is TMPDIR")
    return parser.parse_args()


def _audit(folder: Path, num_rows: int) -> Measured:
    for name in ("scratch", "temporary"):
        (folder / name).mkdir(parents=True)
    store = LocalStore(folder / "store")
    write_synthetic_run(store, num_rows, folder / "scratch")
    command = [sys.executable, "-m", "flows.cli", "audit", f"{store.address}/runs/{RUN}"]
    return measure(command, folder / "temporary", {**os.environ, "TMPDIR": str(folder / "temporary")})


def _cells(num_rows: int, found: Measured, store: Path) -> list[str]:
    sizes = (found.memory_bytes, found.disk_bytes, num_bytes_in(store / "datasets"), num_bytes_in(store / "runs"))
    seconds = (f"{found.seconds:.1f}", f"{found.cpu_seconds:.1f}", f"{num_rows / found.seconds:,.0f}")
    return [f"{num_rows:,}", *seconds, *(f"{size / 1e6:,.0f}" for size in sizes)]


if __name__ == "__main__":
    main()
