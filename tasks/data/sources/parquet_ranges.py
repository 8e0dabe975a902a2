"""Which bytes of a Parquet file are needed for some of its columns.

Invariant: only what the footer states to be a chunk of another column is left out: footer, page indexes, bloom filters
and whatever else a writer put between the chunks is all there. A reader of these columns finds every byte at its
offset.
"""

from collections.abc import Iterable, Iterator

import pyarrow.parquet as pq

Range = tuple[int, int]

# A request takes as long as some ten or hundred KiB: a hole that is smaller is fetched too.
SMALLEST_HOLE_BYTES = 64 << 10
LARGEST_RANGE_BYTES = 8 << 20


def needed_ranges(footer: pq.FileMetaData, columns: set[str], num_bytes: int, rows: range | None = None) -> list[Range]:
    """The first byte of each range and the one after its last, in order, none longer than 8 MiB.

    With `rows`, of the row groups that have one of them, and what is beside all row groups.
    """
    chunks = list(_chunks(footer, rows))
    if any(chunk.file_path for _, chunk, _ in chunks):
        return list(_cut([(0, num_bytes)]))  # its offsets are those in another file
    needed = [_range_of(chunk) for names, chunk, is_in in chunks if is_in and (names & columns or not names)]
    unread = _merged(_range_of(chunk) for names, chunk, is_in in chunks if not is_in or (names and not names & columns))
    holes = [(start, end) for start, end in unread if end - start >= SMALLEST_HOLE_BYTES]
    kept = [*needed, *_without(holes, num_bytes)]
    return list(_cut(_merged((max(0, start), min(end, num_bytes)) for start, end in kept)))


def _chunks(footer: pq.FileMetaData, rows: range | None) -> Iterator[tuple[set[str], pq.ColumnChunkMetaData, bool]]:
    """Every chunk with the names of the columns that it may be of, and whether its row group has one of the rows.

    Lists have chunks below their own name.
    """
    names, first = columns_of_leaves(footer), 0
    for group_index in range(footer.num_row_groups):
        group = footer.row_group(group_index)
        end = first + group.num_rows
        is_in = rows is None or (first < rows.stop and rows.start < end)
        yield from ((names[index], group.column(index), is_in) for index in range(group.num_columns))
        first = end


def columns_of_leaves(footer: pq.FileMetaData) -> list[set[str]]:
    """For each leaf of the schema the columns that it may belong to: more than one where names have dots."""
    columns = footer.schema.to_arrow_schema().names
    paths = [f"{footer.schema.column(index).path}." for index in range(len(footer.schema))]
    return [{column for column in columns if path.startswith(f"{column}.")} for path in paths]


def _range_of(chunk: pq.ColumnChunkMetaData) -> Range:
    # Some writers set 0 where there is no dictionary.
    starts = [start for start in (chunk.dictionary_page_offset, chunk.data_page_offset) if start]
    return (min(starts), min(starts) + chunk.total_compressed_size) if starts else (0, 0)


def _merged(ranges: Iterable[Range]) -> list[Range]:
    """Ranges in order that neither touch nor overlap."""
    merged: list[Range] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif start < end:
            merged.append((start, end))
    return merged


def _without(holes: list[Range], num_bytes: int) -> Iterator[Range]:
    """What is left of the file without these."""
    start = 0
    for hole_start, hole_end in holes:
        if start < hole_start:
            yield start, hole_start
        start = hole_end
    if start < num_bytes:
        yield start, num_bytes


def _cut(ranges: Iterable[Range]) -> Iterator[Range]:
    for start, end in ranges:
        for first in range(start, end, LARGEST_RANGE_BYTES):
            yield first, min(first + LARGEST_RANGE_BYTES, end)
