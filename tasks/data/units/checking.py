"""The unit `check`: a chunk is measured against the contract's rules, and what all rows together decide is extracted.

Invariant: the extract has one row for each row of the chunk, in its order, and all of it but id, order key, text
and tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.data.contract.measured import Measured, measure
from tasks.data.contract.repeats import (
    ORDER_KEY,
    Repeats,
    count_repeats,
    has_any,
    repeated_order_keys,
    write_order_keys,
)
from tasks.data.database import order_key_sql, parquet_sql
from tasks.data.rows import extracted_columns
from tasks.data.sql import literal
from tasks.data.units.chunks import bytes_of_chunk
from tasks.data.units.decoded import CRC, leave_rows
from tasks.data.units.records import HASHES, fetch_file, hashes_of, unit_name
from tasks.data.units.staging import Record, StagingArea
from tasks.data.units.workspace import Workspace

Files = dict[str, Path]
# What is asked of ids in all rows together is asked of their order keys first, which are left by themselves.
NOT_EXTRACTED = ("id", "order_key")


class Extract(NamedTuple):
    """Files of all chunks: rows without id, order key, text and tokens; those in the sample; the order keys, sorted.

    There are no order keys where ids are numbers of rows.
    """

    rows: list[Path]
    sample: list[Path]
    order_keys: list[Path]


def check(workspace: Workspace, index: int, folder: Path) -> tuple[Record, Files]:
    """Measure a chunk, and leave its rows. Raises `ContractError` for a file that cannot be read to its end."""
    extract, sample, order_keys = folder / "extract.parquet", folder / "sample.parquet", folder / "order_keys"
    record: Record = {"measured": []}
    samples, read, columns = [], [], extracted_columns(workspace.config)
    with workspace.database() as connection:
        for table, row_range in workspace.row_ranges(index):
            found, sampled, rows = measure(connection, table, workspace.config, row_range, columns)
            record["measured"].append(asdict(found))
            samples.append(sampled)
            read += [] if rows is None else [rows]
        if len(read) < len(samples):
            query = f"SELECT {columns} FROM ({workspace.chunk_sql(index)})"
            some = f"SELECT * EXCLUDE ({', '.join(NOT_EXTRACTED)}) FROM ({query})"
            connection.execute(f"COPY ({some}) TO {literal(str(extract))} (FORMAT parquet, COMPRESSION zstd)")
            of_rows = connection.sql(f"SELECT order_key FROM ({query})").to_arrow_table()
    pq.write_table(pa.concat_tables(samples), sample, compression="zstd")
    if len(read) == len(samples):
        of_rows = pa.concat_tables(read)
        extracted = of_rows.drop_columns([*NOT_EXTRACTED, "tokens"])
        pq.write_table(extracted, extract, compression="zstd", write_statistics=False)
        if workspace.omits_rows:
            record[CRC] = leave_rows(workspace, index, of_rows, folder)
    files = {_extract_name(index): extract, _sample_name(index): sample}
    if workspace.config.id:  # else an id is a number of a row, and none is there twice
        write_order_keys(of_rows.column("order_key").drop_null().to_numpy(), order_keys)
        files[_order_keys_name(index)] = order_keys
    return record | hashes_of(files), files


def fetch_extract(staging: StagingArea, records: Sequence[Record]) -> Extract:
    """What the units have extracted, on this machine. Raises `CorruptObjectError` for what is not as it was kept."""

    def fetched(name_of: Callable[[int], str]) -> list[Path]:
        named = [(unit_name("check", index), record, name_of(index)) for index, record in enumerate(records)]
        return [fetch_file(staging, *of_unit) for of_unit in named if of_unit[-1] in of_unit[1][HASHES]]

    return Extract(fetched(_extract_name), fetched(_sample_name), fetched(_order_keys_name))


def open_extract(connection: duckdb.DuckDBPyConnection, extract: Extract) -> None:
    """Make the views `samples` and `sampled`: the extract of all rows in their order, and the sample of them."""
    for view, paths in (("samples", extract.rows), ("sampled", extract.sample)):
        connection.execute(f"CREATE TEMP VIEW {view} AS SELECT * FROM {parquet_sql(paths, by_name=True)}")


def find_repeats(connection: duckdb.DuckDBPyConnection, workspace: Workspace, paths: Sequence[Path]) -> Repeats:
    """The ids that several rows have, where a column has the ids; `paths` are those of the rows' order keys.

    Chunks in which that may be are read once more.
    """
    repeated = repeated_order_keys(paths, bytes_of_chunk(workspace.config) // ORDER_KEY.itemsize)
    connection.register("repeated", pa.table({"order_key": repeated}))
    connection.execute("CREATE TEMP TABLE suspected (id VARCHAR)")
    for index in [index for index, path in enumerate(paths) if len(repeated) and has_any(path, repeated)]:
        rows = f"SELECT id, {order_key_sql(workspace.config)} AS order_key FROM ({workspace.chunk_sql(index)})"
        connection.execute(f"INSERT INTO suspected SELECT id FROM ({rows}) WHERE order_key IN (FROM repeated)")
    return count_repeats(connection, "suspected")


def measured_in(records: list[Record]) -> list[Measured]:
    """What was measured in all row ranges, in their order."""
    return [Measured(**found) for record in records for found in record["measured"]]


def _extract_name(index: int) -> str:
    return f"check-{index:06d}-extract.parquet"


def _sample_name(index: int) -> str:
    return f"check-{index:06d}-sample.parquet"


def _order_keys_name(index: int) -> str:
    return f"check-{index:06d}.order_keys"
