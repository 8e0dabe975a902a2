"""Small Parquet files, and files of other formats, as a user would bring them, and the configuration for them."""

import gzip
import json
import math
import random
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq

from storage.datasets import DatasetManifest, dataset_key, token_type
from storage.objects.store import Store
from tasks.configuration.run import DataConfig
from tasks.data.contract.measured import Measured, measure
from tasks.data.database import order_key_sql
from tasks.data.identity.fingerprints import fingerprint_files, read_inputs
from tasks.data.listing import find_source
from tasks.data.rows import extracted_columns
from tasks.data.sources.columns import RowRange, SourceTable, inspect_files
from tasks.data.sources.samples_sql import samples_sql
from tasks.data.split import split_sql

CLASSES = ("billing", "travel", "work")
WORDS = {"billing": "pay the card bill", "travel": "book a flight to oslo", "work": "plan my next meeting"}


def write_parquet(path: Path, columns: dict[str, Any], row_group_rows: int | None = None) -> Path:
    """Write columns (lists or Arrow arrays) as one file, its folder too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=row_group_rows)
    return path


def write_table(path: Path, columns: dict[str, Any]) -> Path:
    """Write columns in the format that the file's name says, as a careful user's program does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    table = pa.table(columns)
    if kind == "parquet":
        return write_parquet(path, columns)
    if kind in ("arrow", "feather"):
        feather.write_feather(table, path, compression="lz4", chunksize=50)
        return path
    rows = table.to_pylist()
    if kind in ("jsonl", "ndjson"):
        lines = [json.dumps(row, default=datetime.isoformat) for row in rows]
    else:
        separator = {"csv": ",", "tsv": "\t"}[kind]
        header = separator.join(map(_csv_field, table.column_names))
        lines = [header, *(separator.join(_csv_field(value) for value in row.values()) for row in rows)]
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def _csv_field(value: Any) -> str:
    """Quoted where it has to be; a missing value is empty."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    text = json.dumps(value) if isinstance(value, list) else str(value)
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in '",\t\n\r') else text


def text_columns(num_rows: int, first: int = 0) -> dict[str, Any]:
    """Rows with an id, a text that tells its label, two numeric and one categorical column with gaps."""
    ids = range(first, first + num_rows)
    labels = [CLASSES[i % 3] for i in ids]
    return {
        "sample_id": [f"s{i:05d}" for i in ids],
        "text": [f"{WORDS[label]} number {i}" for i, label in zip(ids, labels, strict=True)],
        "domain": labels,
        "length": pa.array([None if i % 11 == 0 else i % 97 for i in ids], pa.int64()),
        "score": pa.array([float("nan") if i % 13 == 0 else i / 7 for i in ids], pa.float64()),
        "region": pa.array([None if i % 17 == 0 else f"r{i % 5}" for i in ids], pa.string()),
    }


def text_config(source: Path | str, **changes: Any) -> DataConfig:
    """What fits `text_columns`, without metadata unless asked for."""
    values = {"text": "text", "label": "domain", "kind": "multiclass", "vocabulary_size": 300, "max_tokens": 64}
    return DataConfig(
        source=str(source), **(values | {"id": "sample_id", "row_group_rows": 16, "shard_rows": 64} | changes)
    )


def token_columns(num_rows: int, seed: int = 0) -> dict[str, Any]:
    """Rows that are tokenised already: padded to 12 positions, with a mask; the label is a boolean."""
    generator = random.Random(seed)
    lengths = [generator.randint(1, 12) for _ in range(num_rows)]
    tokens = [[generator.randint(1, 999) for _ in range(length)] + [0] * (12 - length) for length in lengths]
    return {
        "sample_id": list(range(num_rows)),
        "input_ids": pa.array(tokens, pa.list_(pa.int32())),
        "attention_mask": pa.array([[1] * n + [0] * (12 - n) for n in lengths], pa.list_(pa.int8())),
        "label": [i % 5 == 0 for i in range(num_rows)],
        "shard_id": [i % 20 for i in range(num_rows)],
    }


def token_config(source: Path | str, **changes: Any) -> DataConfig:
    """What fits `token_columns`."""
    values = {"tokens": "input_ids", "attention_mask": "attention_mask", "label": "label", "kind": "binary"}
    others = {"id": "sample_id", "vocabulary_size": 1000, "max_tokens": 12, "row_group_rows": 16, "shard_rows": 64}
    return DataConfig(source=str(source), **(values | others | changes))


def open_samples(connection: duckdb.DuckDBPyConnection, config: DataConfig) -> SourceTable:
    """The files that a configuration names, as the view `samples` that the contract and the split are asked of."""
    table = inspect_files(find_source(config), config)
    split = split_sql(config)
    columns = f"*, {order_key_sql(config)} AS order_key" + ("" if split is None else f", {split} AS split")
    connection.execute(f"CREATE OR REPLACE TEMP VIEW samples AS SELECT {columns} FROM ({samples_sql(table, config)})")
    return table


def measure_samples(connection: duckdb.DuckDBPyConnection, table: SourceTable, config: DataConfig) -> list[Measured]:
    """What is found in each file, and the sample of all rows as the table `sampled`."""
    found = [
        measure(connection, table, config, RowRange(index, 0, num_rows), extracted_columns(config))
        for index, num_rows in enumerate(table.num_rows)
    ]
    connection.register("sampled", pa.concat_tables(sample for _, sample, _ in found))
    return [measured for measured, *_ in found]


def read_split(store: Store, manifest: DatasetManifest, split: str) -> pa.Table:
    """All rows of a split, in order; `tokens` are lists of numbers."""
    shards = manifest.splits[split].shards
    table = pa.concat_tables([pq.read_table(store.fetch(dataset_key(manifest.digest, shard.name))) for shard in shards])
    kind = token_type(manifest.vocabulary_size)
    tokens = [np.frombuffer(row, kind).tolist() for row in table.column("tokens").to_pylist()]
    return table.set_column(table.schema.get_field_index("tokens"), "tokens", pa.array(tokens, pa.list_(pa.int32())))


def read_rows(store: Store, manifest: DatasetManifest) -> dict[str, dict[str, Any]]:
    """Every row of every split by its id, with the name of its split."""
    return {
        row["id"]: row | {"split": split}
        for split in manifest.splits
        for row in read_split(store, manifest, split).to_pylist()
    }


def inputs_of(config: DataConfig, scratch: Path) -> dict[str, Any]:
    """What the digest of a data set made now would be taken over, but for the order of its classes."""
    files = find_source(config)
    return read_inputs(config, files, fingerprint_files(files, scratch))
