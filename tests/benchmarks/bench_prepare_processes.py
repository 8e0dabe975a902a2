"""What `bench_prepare` measures, each in a process of its own."""

import atexit
import json
import os
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from storage.objects.local_store import LocalStore
from storage.processors import count_processors
from tasks.configuration.run import DataConfig, PrepareConfig
from tasks.data.database import hash_sql, open_database, parquet_sql
from tasks.data.sql import literal
from tasks.data.tokenizer import train_tokenizer
from tasks.data.units.texts import MOST_TEXTS

TIMES = "seconds.json"


def copy(config: DataConfig, folder: Path) -> None:
    """DuckDB alone: all columns, in the order that shards have."""
    files = sorted(Path(config.source).glob("*.parquet"))
    with open_database(config.memory_limit, folder) as connection:
        connection.execute(f"SET threads = {count_processors()}")
        place = hash_sql(f"'order:{config.seed}:' || {config.id}")
        path = literal(str(folder / "copy.parquet"))
        rows = f"SELECT * FROM {parquet_sql(files)} ORDER BY {place}, {config.id}"
        connection.execute(f"COPY ({rows}) TO {path} (FORMAT parquet, COMPRESSION zstd)")


def prepare(config: DataConfig, folder: Path) -> None:
    """As `holdfast prepare` does it."""
    from tasks.data.pipeline import prepare_dataset
    from tasks.prepare_unit import PrefectUnits

    engine = PrefectUnits(config, PrepareConfig())
    prepare_dataset(config, LocalStore(folder / "store"), folder / "scratch", engine=engine)


def encode(config: DataConfig, folder: Path) -> None:
    """The `tokenizers` library alone: learns from as many texts as we do, encodes all, and keeps the rows with ids."""
    table = pa.concat_tables(map(pq.read_table, sorted(Path(config.source).glob("*.parquet"))))
    texts = table.column(config.text).to_pylist()
    seconds = {}
    began = time.monotonic()
    tokenizer = train_tokenizer(texts[:MOST_TEXTS], config.vocabulary_size)
    seconds["learn"], began = time.monotonic() - began, time.monotonic()
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    seconds["encode"] = time.monotonic() - began
    ids = pa.array([encoding.ids for encoding in encodings], pa.list_(pa.int32()))
    pq.write_table(table.drop([config.text]).append_column("tokens", ids), folder / "ids.parquet")
    (folder / TIMES).write_text(json.dumps(seconds))


if __name__ == "__main__":
    # As the command leaves: taking hundreds of modules apart would be measured too.
    atexit.register(os._exit, 0)
    {"copy": copy, "prepare": prepare, "encode": encode}[sys.argv[1]](
        DataConfig.model_validate_json(sys.argv[2]), Path(sys.argv[3])
    )
    os._exit(0)  # as `holdfast` leaves
