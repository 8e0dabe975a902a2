"""Where a Parquet file has bytes in a column of texts that are no UTF-8: some writers do not look.

Invariant: it is asked only after a file could not be read, and finds the first such value of a column by its row.
"""

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.configuration.run import DataConfig
from tasks.data.sources.column_types import TEXT
from tasks.data.sources.columns import SourceTable, named_columns
from tasks.data.sources.messages import broken_contract
from tasks.data.sources.source_file import SourceFile


def require_utf8(file: SourceFile, table: SourceTable, config: DataConfig) -> None:
    """Raise `ContractError` for the first value of a column of texts that is not UTF-8, if there is one."""
    for column, _ in named_columns(config):
        found = _find_other_bytes(file, column) if table.families[column] == TEXT else None
        if found is not None:
            row, value = found
            raise broken_contract(
                f"Column {column!r} in {file.name} has bytes that are not UTF-8.",
                "texts in UTF-8",
                f"row {row:,} of {file.location} has {value[:60]!r}",
                "decode these values in the encoding that they are in, such as latin-1, when writing the file",
            )


def _find_other_bytes(file: SourceFile, column: str) -> tuple[int, bytes] | None:
    row = 0
    try:
        with pq.ParquetFile(file.rows) as opened:
            for batch in opened.iter_batches(columns=[column]):
                for value in batch.column(0).cast(pa.large_binary()):
                    if value.is_valid and not _is_utf8(value.as_py()):
                        return row, value.as_py()
                    row += 1
    except (pa.ArrowException, OSError):
        return None  # what is wrong with it is something else
    return None


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
