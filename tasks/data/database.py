"""A DuckDB of one's own, for as long as a block: bounded in memory, spilling into a folder, without network access.

Invariant: nothing is downloaded, and nothing is written but in the folder for what does not fit into memory.
"""

import contextlib
import glob
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb

from storage.errors import ConfigurationError, StoreError
from storage.processors import count_processors
from tasks.configuration.run import UNLIMITED, DataConfig
from tasks.data.sql import literal

HASH_VALUES = 2**64


@contextlib.contextmanager
def open_database(memory_limit: str, folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """An empty database in memory. Raises `ConfigurationError` for a limit that is no size."""
    connection = duckdb.connect()
    try:
        connection.execute("SET autoinstall_known_extensions = false")  # nothing is downloaded
        connection.execute("SET autoload_known_extensions = false")
        connection.execute("SET enable_progress_bar = false")
        connection.execute(f"SET threads = {count_processors()}")  # by itself it takes as many as the machine has
        # Parquet's minimum and maximum leave NaN out, and DuckDB 2.0.0 concludes from them that isnan() is never true.
        connection.execute("SET disabled_optimizers = 'statistics_propagation'")
        connection.execute("SET GLOBAL TimeZone = 'UTC'")  # also of the connections that `cursor` makes of this one
        connection.execute(f"SET temp_directory = {literal(str(folder / 'spill'))}")
        connection.execute(f"SET memory_limit = {literal('none' if memory_limit == UNLIMITED else memory_limit)}")
    except duckdb.ParserException as error:
        connection.close()
        raise ConfigurationError(
            f"data.memory_limit must be a size like '2GB' or '512MB', or '{UNLIMITED}', found {memory_limit!r}."
        ) from error
    with connection:
        yield connection


@contextlib.contextmanager
def explained_errors(memory_limit: str, folder: Path) -> Iterator[None]:
    """Turn what DuckDB raises into a `ConfigurationError` for too little memory or disk, or a `StoreError`."""
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise ConfigurationError(
            f"The ledger takes more memory than data.memory_limit = {memory_limit!r}, or more disk than {folder} has: "
            f"{first_line(error)} Raise data.memory_limit, or give that folder a larger disk."
        ) from error
    except duckdb.Error as error:
        raise StoreError(
            f"The ledger or the data set cannot be read: {first_line(error)} "
            "Check that the store's files are there and may be read."
        ) from error


def first_line(error: Exception) -> str:
    """DuckDB's message, without the advice that follows."""
    return str(error).partition("\n")[0]


def hash_sql(text: str) -> str:
    """SQL of the hash of a text, itself SQL: the number below `HASH_VALUES` that the last half of its MD5 is.

    It is `md5_number_lower`, which takes several times as long: that one writes the MD5 as text first.
    """
    return f"(md5_number({text}) >> 64)::UBIGINT"


def order_key_sql(config: DataConfig) -> str:
    """SQL of a row's key in the order of all rows, a number."""
    return hash_sql(f"'order:{config.seed}:' || id")


def parquet_sql(paths: Sequence[Path], by_name: bool = False) -> str:
    """SQL of the rows of these files and nothing else: characters that mean something in a pattern are escaped.

    With `by_name` a column may have more than one type, which are brought together.
    """
    listed = ", ".join(literal(glob.escape(str(path))) for path in paths)
    return f"read_parquet([{listed}], hive_partitioning = false, union_by_name = {str(by_name).lower()})"
