"""`make bench-prepare`: preparing token input against a plain COPY of DuckDB in the same order; memory and disk.

Both read the same Parquet with the same limit of memory and as many processors, one after the other, each in processes
of its own. Preparation is measured as `holdfast prepare` does it, with a Prefect server that runs already. Memory is of
all its processes together; disk is what store and scratch have at most. Up to ten million rows the two take turns three
times: seconds are medians, and the ratio is the median of the rounds' ratios. Rows are those of the quality corpus up
to a million, and short ones above. The last line is for machines: `name=value` pairs.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
from rich.console import Console
from rich.table import Table

from tasks.configuration.run import DataConfig
from tasks.corpora.generate import generate_corpus
from tasks.data.sql import literal
from tasks.data.units.chunks import limit_in_bytes
from tests.benchmarks.measured import Measured, growth_exponent, measure, num_bytes_in
from tests.helpers.prefect_server import running_prefect_server

ROWS = (100_000, 1_000_000)
MOST_LONG_ROWS = 1_000_000
ROWS_IN_A_FILE = 1_000_000
ROUNDS = 3
MOST_REPEATED_ROWS = 10_000_000
MEMORY_LIMIT = "2GB"
COLUMNS = ("rows", "copy s", "prepare s", "prepare / copy", "rows/s", "copy MB", "prepare MB", "disk MB", "data set MB")


def main() -> None:
    """Make the sources, measure, print the table."""
    options = _options()
    rows, limit = options.rows, limit_in_bytes(MEMORY_LIMIT)
    table = Table(*COLUMNS)
    found: list[Compared] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        with running_prefect_server(folder) as server:
            environment = server | {"PREFECT_LOGGING_LEVEL": "ERROR"}
            for num_rows in rows:
                config = _source(folder / str(num_rows), num_rows)
                compared = Compared(num_rows)
                for _ in range(ROUNDS if num_rows <= MOST_REPEATED_ROWS else 1):
                    compared.measure(config, folder, environment)
                found.append(compared)
                table.add_row(*compared.cells())
                subprocess.run(["rm", "-rf", config.source], check=True)
    Console(width=130, highlight=False).print(table)
    worst = max(compared.ratio for compared in found)
    peak = max(prepared.memory_bytes for compared in found for prepared in compared.prepared) / limit
    exponent = growth_exponent(rows, [median_seconds(compared.prepared) for compared in found])
    print(f"prepare_over_copy={worst:.3f} growth_exponent={exponent:.3f} peak_over_limit={peak:.3f}")


@dataclass
class Compared:
    """What the two took for so many rows, round after round."""

    num_rows: int
    copied: list[Measured] = field(default_factory=list)
    prepared: list[Measured] = field(default_factory=list)
    dataset_bytes: int = 0

    def measure(self, config: DataConfig, folder: Path, environment: dict[str, str]) -> None:
        """One round, in folders that are removed."""
        for what, found in (("copy", self.copied), ("prepare", self.prepared)):
            own = folder / what
            found.append(measure(command(what, config, own), own, environment))
            self.dataset_bytes = num_bytes_in(own / "store")
            subprocess.run(["rm", "-rf", own], check=True)

    @property
    def ratio(self) -> float:
        return statistics.median(
            prepared.seconds / copied.seconds for copied, prepared in zip(self.copied, self.prepared, strict=True)
        )

    def cells(self) -> list[str]:
        """A row of the table."""
        copied, prepared = median_seconds(self.copied), median_seconds(self.prepared)
        memory = [max(one.memory_bytes for one in found) for found in (self.copied, self.prepared)]
        disk = max(one.disk_bytes for one in self.prepared)
        megabytes = (f"{num_bytes / 1e6:,.0f}" for num_bytes in (*memory, disk, self.dataset_bytes))
        seconds = (f"{copied:.1f}", f"{prepared:.1f}", f"{self.ratio:.2f}", f"{self.num_rows / prepared:,.0f}")
        return [f"{self.num_rows:,}", *seconds, *megabytes]


def median_seconds(found: list[Measured]) -> float:
    return statistics.median(one.seconds for one in found)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="numbers of rows, in rising order")
    parser.add_argument("--folder", type=Path, help="where sources and results are put; the default is TMPDIR")
    return parser.parse_args()


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


def command(what: str, config: DataConfig, folder: Path) -> list[str]:
    """One of `bench_prepare_processes`, with a new folder for all that it writes."""
    folder.mkdir()
    return [
        sys.executable,
        "-m",
        "tests.benchmarks.bench_prepare_processes",
        what,
        config.model_dump_json(),
        str(folder),
    ]


if __name__ == "__main__":
    main()
