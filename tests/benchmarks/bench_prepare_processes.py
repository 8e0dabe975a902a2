"""What `bench_prepare` measures, each in a process of its own."""

import os
import sys
from pathlib import Path

from storage.objects.local_store import LocalStore
from tasks.configuration import DataConfig, PrepareConfig
from tasks.data.database import open_database, parquet_sql
from tasks.data.sources.columns import literal


def copy(config: DataConfig, folder: Path) -> None:
    """DuckDB alone: all columns, in the order that shards have."""
    files = sorted(Path(config.source).glob("*.parquet"))
    with open_database(config.memory_limit, folder) as connection:
        connection.execute(f"SET threads = {os.cpu_count()}")
        order = f"md5_number_lower('order:{config.seed}:' || {config.id}), {config.id}"
        path = literal(str(folder / "copy.parquet"))
        connection.execute(
            f"COPY (SELECT * FROM {parquet_sql(files)} ORDER BY {order}) TO {path} (FORMAT parquet, COMPRESSION zstd)"
        )


def prepare(config: DataConfig, folder: Path) -> None:
    """As `holdfast prepare` does it."""
    from tasks.data.pipeline import prepare_dataset
    from tasks.prepare_unit import PrefectUnits

    engine = PrefectUnits(config, PrepareConfig())
    prepare_dataset(config, LocalStore(folder / "store"), folder / "scratch", engine=engine)


if __name__ == "__main__":
    {"copy": copy, "prepare": prepare}[sys.argv[1]](DataConfig.model_validate_json(sys.argv[2]), Path(sys.argv[3]))
    os._exit(0)  # as `holdfast` leaves
