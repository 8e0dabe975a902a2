"""The unit `check`: a piece is measured against the contract's rules, and what all rows together decide is extracted.

Invariant: the extract has one row for each row of the piece, in its order, and everything of it but text and tokens.
"""

from dataclasses import asdict
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.configuration import DataConfig
from tasks.data.contract.measured import Measured, measure
from tasks.data.database import parquet_sql
from tasks.data.sources.columns import literal
from tasks.data.split import split_sql
from tasks.data.units.area import Area, Record
from tasks.data.units.decoded import CRC, leave_tokens
from tasks.data.units.place import Place

Files = dict[str, Path]


def check(place: Place, index: int, folder: Path) -> tuple[Record, Files]:
    """Measure a piece, and leave its tokens. Raises `ContractError` for a file that cannot be read to its end."""
    extract, sample = folder / "extract.parquet", folder / "sample.parquet"
    measured, samples, decoded = [], [], []
    with place.database() as connection:
        for table, stretch in place.stretches(index):
            found, rows, tokens = measure(connection, table, place.config, stretch)
            measured.append(asdict(found))
            samples.append(rows)
            decoded += [] if tokens is None else [tokens]
        query = f"SELECT {extracted_columns(place.config)} FROM ({place.piece_sql(index)})"
        connection.execute(f"COPY ({query}) TO {literal(str(extract))} (FORMAT parquet, COMPRESSION zstd)")
    pq.write_table(pa.concat_tables(samples), sample, compression="zstd")
    record: Record = {"measured": measured}
    if place.leaves_tokens and len(decoded) == len(measured):
        record[CRC] = leave_tokens(place, index, decoded, folder)
    return record, {_extract_name(index): extract, _sample_name(index): sample}


def extracted_columns(config: DataConfig) -> str:
    """SQL of the columns of the extract: of those that `samples_sql` gives, and the split where the row decides it."""
    numeric, categorical = (
        (f"n{i}" for i in range(len(config.numeric))),
        (f"c{i}" for i in range(len(config.categorical))),
    )
    columns = ["id", "label", "split_key", *numeric, *categorical]
    columns += ["own_split"] if config.split.has_own_sources else []
    split = split_sql(config)
    return ", ".join(columns if split is None else [*columns, f"{split} AS split"])


def open_extract(connection: duckdb.DuckDBPyConnection, area: Area, num_pieces: int) -> None:
    """Make the views `samples` and `sampled`: the extract of all rows in their order, and the sample of them."""
    for view, name in (("samples", _extract_name), ("sampled", _sample_name)):
        paths = [area.fetch(name(index)) for index in range(num_pieces)]
        connection.execute(f"CREATE TEMP VIEW {view} AS SELECT * FROM {parquet_sql(paths, by_name=True)}")


def measured_in(records: list[Record]) -> list[Measured]:
    """What was measured in all stretches, in their order."""
    return [Measured(**found) for record in records for found in record["measured"]]


def _extract_name(index: int) -> str:
    return f"check-{index:06d}-extract.parquet"


def _sample_name(index: int) -> str:
    return f"check-{index:06d}-sample.parquet"
