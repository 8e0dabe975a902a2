"""`make bench-prepare`: preparing token input against a plain COPY of DuckDB in the same order; memory and disk.

Both read the same Parquet with the same limit of memory and as many processors, one after the other, each in processes
of its own. Preparation is measured as `holdfast prepare` does it, with a Prefect server that runs already. Memory is
the sum over all its processes of what each has for itself, and its share of what several have (PSS), taken four times a
second; disk is what store and scratch have at most. Rows are those of the quality corpus up to a million, and short
ones above. The last line is for machines: `name=value` pairs.
"""

import argparse
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import psutil
from rich.console import Console
from rich.table import Table

from tasks.configuration import DataConfig
from tasks.corpora.generate import generate_corpus
from tasks.data.sources.columns import literal
from tasks.data.units.pieces import limit_in_bytes
from tests.helpers.prefect_server import running_prefect_server

ROWS = (100_000, 1_000_000)
MOST_LONG_ROWS = 1_000_000
ROWS_IN_A_FILE = 1_000_000
MEMORY_LIMIT = "2GB"
SAMPLE_SECONDS = 0.25
COLUMNS = ("rows", "copy s", "prepare s", "prepare / copy", "rows/s", "copy MB", "prepare MB", "disk MB", "data set MB")


@dataclass(frozen=True)
class Measured:
    """One command: its time, and the most that it had at any moment."""

    seconds: float
    memory_bytes: int
    disk_bytes: int


def main() -> None:
    """Make the sources, measure, print the table."""
    options = _options()
    rows, limit = options.rows, limit_in_bytes(MEMORY_LIMIT)
    table = Table(*COLUMNS)
    found: list[tuple[int, Measured, Measured]] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        with running_prefect_server(folder) as environment:
            for num_rows in rows:
                config = _source(folder / str(num_rows), num_rows)
                copied = _measure(_command("copy", config, folder / "copy"), folder / "copy", environment)
                prepared = _measure(_command("prepare", config, folder / "own"), folder / "own", environment)
                size = _num_bytes(folder / "own" / "store")
                found.append((num_rows, copied, prepared))
                table.add_row(*_cells(num_rows, copied, prepared, size))
                subprocess.run(["rm", "-rf", folder / "copy", folder / "own", config.source], check=True)
    Console(width=130, highlight=False).print(table)
    worst = max(prepared.seconds / copied.seconds for _, copied, prepared in found)
    peak = max(prepared.memory_bytes for _, _, prepared in found) / limit
    print(f"prepare_over_copy={worst:.3f} growth_exponent={_exponent(found):.3f} peak_over_limit={peak:.3f}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="numbers of rows, in rising order")
    parser.add_argument("--folder", type=Path, help="where sources and results are put; the default is TMPDIR")
    return parser.parse_args()


def _exponent(found: Sequence[tuple[int, Measured, Measured]]) -> float:
    """Of the time as a power of the number of rows, between the two largest; 1 is a straight line."""
    if len(found) < 2:
        return math.nan
    (fewer, _, first), (more, _, last) = found[-2:]
    return math.log(last.seconds / first.seconds) / math.log(more / fewer)


def _cells(num_rows: int, copied: Measured, prepared: Measured, size: int) -> list[str]:
    megabytes = (f"{n / 1e6:,.0f}" for n in (copied.memory_bytes, prepared.memory_bytes, prepared.disk_bytes, size))
    ratio = f"{prepared.seconds / copied.seconds:.2f}"
    rate = f"{num_rows / prepared.seconds:,.0f}"
    return [f"{num_rows:,}", f"{copied.seconds:.1f}", f"{prepared.seconds:.1f}", ratio, rate, *megabytes]


def _source(folder: Path, num_rows: int) -> DataConfig:
    """Token input with so many rows, and what its columns mean."""
    if num_rows <= MOST_LONG_ROWS:
        generate_corpus(folder, "quality", num_rows)
        metadata = {"numeric": ["prompt_length", "response_length"], "categorical": ["language", "model_family"]}
    else:
        _write_short_rows(folder, num_rows)
        metadata = {"numeric": ["prompt_length"], "categorical": ["language"]}
    return DataConfig.model_validate(
        {"source": str(folder), "id": "sample_id", "tokens": "input_ids", "attention_mask": "attention_mask"}
        | {"label": "label", "kind": "binary", "max_tokens": 2048, "memory_limit": MEMORY_LIMIT}
        | metadata
    )


def _write_short_rows(folder: Path, num_rows: int) -> None:
    """Rows of 8 to 23 tokens."""
    folder.mkdir()
    length = "8 + CAST(hash(i) % 16 AS BIGINT)"
    with duckdb.connect() as connection:
        for part, first in enumerate(range(0, num_rows, ROWS_IN_A_FILE)):
            path, end = folder / f"{part:05d}.parquet", min(first + ROWS_IN_A_FILE, num_rows)
            query = (
                "SELECT printf('%016x', hash(i, 1)) || printf('%08x', i) AS sample_id, "
                f"list_transform(range({length}), lambda k: CAST(1 + hash(i, k) % 8000 AS INTEGER)) AS input_ids, "
                f"list_transform(range({length}), lambda k: CAST(1 AS TINYINT)) AS attention_mask, "
                "CAST(hash(i, 2) % 5 = 0 AS TINYINT) AS label, CAST(hash(i, 3) % 900 AS INTEGER) AS prompt_length, "
                f"'language ' || (hash(i, 4) % 7) AS language FROM range({first}, {end}) t(i)"
            )
            connection.execute(f"COPY ({query}) TO {literal(str(path))} (FORMAT parquet, ROW_GROUP_SIZE 100000)")


def _command(what: str, config: DataConfig, folder: Path) -> list[str]:
    folder.mkdir()
    return [
        sys.executable,
        "-m",
        "tests.benchmarks.bench_prepare_processes",
        what,
        config.model_dump_json(),
        str(folder),
    ]


def _measure(command: Sequence[str], folder: Path, environment: dict[str, str]) -> Measured:
    memory_bytes = disk_bytes = 0
    began = time.monotonic()
    with subprocess.Popen(command, env=environment | {"PREFECT_LOGGING_LEVEL": "ERROR"}) as process:
        while process.poll() is None:
            memory_bytes = max(memory_bytes, _memory(process.pid))
            disk_bytes = max(disk_bytes, _num_bytes(folder))
            time.sleep(SAMPLE_SECONDS)  # nobody tells how much memory processes have: it is looked at
    if process.returncode:
        raise SystemExit(f"{command[3]} ended with exit code {process.returncode}")
    return Measured(time.monotonic() - began, memory_bytes, disk_bytes)


def _memory(pid: int) -> int:
    total = 0
    for process in _family(pid):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue  # it has just ended
    return total


def _family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return []


def _num_bytes(folder: Path) -> int:
    def size(path: Path) -> int:
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return 0

    return sum(size(path) for path in folder.rglob("*"))


if __name__ == "__main__":
    main()
