"""How the rows of a source are cut into chunks: what one unit of work reads.

Invariant: chunks follow from the files' footers and the memory limit alone, and every row is in exactly one. No byte of
the data set depends on where they are cut.
"""

import math
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow.parquet as pq

from tasks.configuration.run import UNLIMITED, DataConfig
from tasks.data.sources.columns import RowRange, SourceTable, named_columns, read_each, read_footer
from tasks.data.sources.parquet_ranges import columns_of_leaves

SMALLEST_CHUNK_BYTES, LARGEST_CHUNK_BYTES = 8 << 20, 1 << 30
# How many times a unit has its chunk in memory, at most, and what a process needs beside that.
COPIES_IN_MEMORY = 4
PROCESS_BYTES = 256 << 20
SHARE_OF_LIMIT = 32
SHARES_BESIDE_PROCESSES = 4
MOST_ROW_RANGES = 64
VALUE_BYTES = 4  # of a number in a list, at most, once its batch is narrowed
USUAL_LIMIT = 2 << 30
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30,
         "TIB": 2**40}  # fmt: skip

Chunk = list[RowRange]


def limit_in_bytes(memory_limit: str) -> int:
    """`data.memory_limit` as a number; what DuckDB alone understands counts as 2 GiB, and so does no limit."""
    found = re.fullmatch(r"\s*([0-9.]+)\s*([A-Za-z]*)\s*", memory_limit)
    if memory_limit == UNLIMITED or found is None or found[2].upper() not in UNITS:
        return USUAL_LIMIT
    return int(float(found[1]) * UNITS[found[2].upper()])


def bytes_of_chunk(config: DataConfig) -> int:
    """How large a chunk may be in memory."""
    return min(LARGEST_CHUNK_BYTES, max(SMALLEST_CHUNK_BYTES, limit_in_bytes(config.memory_limit) // SHARE_OF_LIMIT))


def num_processes_within(config: DataConfig) -> int:
    """How many processes may work at a time within the limit, beside the one that waits for them."""
    room = limit_in_bytes(config.memory_limit) - PROCESS_BYTES
    return max(1, room // (PROCESS_BYTES + COPIES_IN_MEMORY * bytes_of_chunk(config)))


def limit_beside_processes(config: DataConfig) -> str:
    """The limit of a database beside processes that wait meanwhile, and keep what they have."""
    if config.memory_limit == UNLIMITED:
        return UNLIMITED
    limit = limit_in_bytes(config.memory_limit)
    return f"{min(limit, max(PROCESS_BYTES, limit // SHARES_BESIDE_PROCESSES)) >> 20}MiB"


def cut(table: SourceTable, config: DataConfig) -> tuple[list[Chunk], int]:
    """All rows in chunks, in order, and the bytes of all of them in memory."""
    columns = {column for column, _ in named_columns(config)}
    sizes = [list(_group_sizes(footer, columns)) for footer in read_each(read_footer, table.files)]
    largest = bytes_of_chunk(config)
    # Without row numbers the rows cannot be named to DuckDB.
    cut_file = partial(_row_ranges, largest=largest) if table.has_row_numbers else _whole
    row_ranges = [row_range for file_index, groups in enumerate(sizes) for row_range in cut_file(file_index, groups)]
    return list(_gather(row_ranges, largest)), sum(num_bytes for groups in sizes for _, num_bytes in groups)


def _group_sizes(footer: pq.FileMetaData, columns: set[str]) -> Iterator[tuple[int, int]]:
    """The rows of each row group, and the bytes of these columns in memory."""
    names = columns_of_leaves(footer)
    for group_index in range(footer.num_row_groups):
        group = footer.row_group(group_index)
        chunks = [group.column(i) for i in range(group.num_columns) if names[i] & columns]
        # What repeats is stored once by a dictionary: a list of token ids takes less than it has in memory.
        yield group.num_rows, sum(max(c.num_values * VALUE_BYTES, c.total_uncompressed_size) for c in chunks)


def _whole(file_index: int, groups: list[tuple[int, int]]) -> Iterator[tuple[RowRange, int]]:
    yield RowRange(file_index, 0, sum(n for n, _ in groups)), sum(num_bytes for _, num_bytes in groups)


def _row_ranges(file_index: int, groups: list[tuple[int, int]], largest: int) -> Iterator[tuple[RowRange, int]]:
    """Row ranges of a file that are no larger, if a row is not; of an empty file one without rows."""
    if not groups:
        yield RowRange(file_index, 0, 0), 0
    first = 0
    for num_rows, num_bytes in groups:
        # Part of a row group is read with all of it, so it is cut only where it must be.
        parts = max(1, min(num_rows, math.ceil(num_bytes / largest)))
        ends = [first + num_rows * (part + 1) // parts for part in range(parts)]
        for start, stop in zip([first, *ends], ends, strict=False):
            yield RowRange(file_index, start, stop), num_bytes // parts
        first += num_rows


def _gather(row_ranges: list[tuple[RowRange, int]], largest: int) -> Iterator[Chunk]:
    """Small row ranges together, neighbours in one file as one."""
    chunk: Chunk = []
    filled = 0
    for row_range, num_bytes in row_ranges:
        if chunk and (filled + num_bytes > largest or len(chunk) == MOST_ROW_RANGES):
            yield chunk
            chunk, filled = [], 0
        if chunk and chunk[-1].file_index == row_range.file_index:
            chunk[-1] = chunk[-1]._replace(stop=row_range.stop)
        else:
            chunk.append(row_range)
        filled += num_bytes
    yield chunk


def chunks_from(stored: list[Any]) -> list[Chunk]:
    """Chunks as they were read from JSON."""
    return [[RowRange(*row_range) for row_range in chunk] for chunk in stored]
