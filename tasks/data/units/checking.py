"""The unit `check`: a piece is measured against the contract's rules, and what all rows together decide is extracted.

Invariant: the extract has one row for each row of the piece, in its order, and everything of it but text and tokens.
"""

from dataclasses import asdict
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.data.contract.measured import Measured, measure
from tasks.data.database import parquet_sql
from tasks.data.rows import extracted_columns
from tasks.data.sources.columns import literal
from tasks.data.units.area import Area, Record
from tasks.data.units.decoded import CRC, leave_rows
from tasks.data.units.place import Place

Files = dict[str, Path]
ALL_DIFFERENT = ("id", "place")  # of which a dictionary would be no shorter


def check(place: Place, index: int, folder: Path) -> tuple[Record, Files]:
    """Measure a piece, and leave its rows. Raises `ContractError` for a file that cannot be read to its end."""
    extract, sample = folder / "extract.parquet", folder / "sample.parquet"
    record: Record = {"measured": []}
    samples, read, columns = [], [], extracted_columns(place.config)
    with place.database() as connection:
        for table, stretch in place.stretches(index):
            found, sampled, rows = measure(connection, table, place.config, stretch, columns)
            record["measured"].append(asdict(found))
            samples.append(sampled)
            read += [] if rows is None else [rows]
        if len(read) < len(samples):
            query = f"SELECT {columns} FROM ({place.piece_sql(index)})"
            connection.execute(f"COPY ({query}) TO {literal(str(extract))} (FORMAT parquet, COMPRESSION zstd)")
    pq.write_table(pa.concat_tables(samples), sample, compression="zstd")
    if len(read) == len(samples):
        all_rows = pa.concat_tables(read)
        extracted = all_rows.drop_columns(["tokens"])
        repeating = [name for name in extracted.column_names if name not in ALL_DIFFERENT]
        pq.write_table(extracted, extract, compression="zstd", use_dictionary=repeating, write_statistics=False)
        if place.leaves_rows:
            record[CRC] = leave_rows(place, index, all_rows, folder)
    return record, {_extract_name(index): extract, _sample_name(index): sample}


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
