"""Which bytes of a Parquet file are fetched: all that the columns need, whoever wrote the file, and little more."""

import random
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.data.database import parquet_sql
from tasks.data.sources import parquet_ranges
from tasks.data.sources.parquet_ranges import needed_ranges

NUM_ROWS = 20_000


@cache
def columns() -> dict[str, Any]:
    generator = random.Random(0)
    return {
        "id": [f"s{i:08d}" for i in range(NUM_ROWS)],
        "junk": [generator.randbytes(20).hex() for _ in range(NUM_ROWS)],
        "text": [f"text {generator.random()}" for _ in range(NUM_ROWS)],
        "text.more": [generator.random() for _ in range(NUM_ROWS)],
        "tokens": pa.array([[i, i % 7] for i in range(NUM_ROWS)], pa.list_(pa.int32())),
        "parts": [{"tokens": i, "text": str(generator.random())} for i in range(NUM_ROWS)],
        "label": ["abc"[i % 3] for i in range(NUM_ROWS)],
    }


def by_arrow(path: Path) -> None:
    pq.write_table(pa.table(columns()), path, row_group_size=6_000, write_page_index=True, compression="zstd")


def by_arrow_without_dictionaries(path: Path) -> None:
    pq.write_table(pa.table(columns()), path, row_group_size=7_000, use_dictionary=False, data_page_version="2.0")


def by_duckdb(path: Path) -> None:
    """With bloom filters, which stand behind the chunks and decide which row groups a query reads."""
    table = pa.table(columns())
    with duckdb.connect() as connection:
        connection.register("given", table)
        connection.execute(f"COPY (SELECT * FROM given) TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 6144)")


@pytest.fixture(scope="module", params=[by_arrow, by_arrow_without_dictionaries, by_duckdb])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    whole = tmp_path_factory.mktemp("file") / "whole.parquet"
    request.param(whole)
    return whole


def with_holes(path: Path, names: set[str]) -> tuple[Path, int]:
    """A copy that has what is needed for these columns and zeros elsewhere, and how many bytes are needed."""
    whole = path.read_bytes()
    copy = bytearray(len(whole))
    ranges = needed_ranges(pq.read_metadata(path), names, len(whole))
    for start, end in ranges:
        copy[start:end] = whole[start:end]
    target = path.with_name("holes.parquet")
    target.write_bytes(copy)
    return target, sum(end - start for start, end in ranges)


def chunk_bytes(path: Path) -> dict[str, int]:
    """The bytes of each column's chunks."""
    footer, found = pq.read_metadata(path), dict[str, int]()
    for index in range(footer.num_row_groups):
        group = footer.row_group(index)
        for chunk in map(group.column, range(group.num_columns)):
            name = chunk.path_in_schema.partition(".list")[0]
            found[name] = found.get(name, 0) + chunk.total_compressed_size
    return found


@pytest.mark.parametrize("names", [{"id"}, {"text", "label"}, {"tokens"}, {"text.more"}, {"id", "text", "label"}])
def test_who_reads_these_columns_finds_the_rows_of_the_file(path: Path, names: set[str]) -> None:
    copy, num_bytes = with_holes(path, names)
    selected = ", ".join(f'"{name}"' for name in sorted(names))
    queries = [f"SELECT {selected}, file_row_number FROM {{}}"]
    queries += [f"SELECT {selected} FROM {{}} WHERE id = 's00012345'"] if "id" in names else []
    with duckdb.connect() as connection:
        for query in queries:
            rows = [connection.execute(query.format(parquet_sql([file]))).fetchall() for file in (path, copy)]
            assert rows[0] == rows[1] and rows[0]
    assert pq.read_table(copy, columns=sorted(names)) == pq.read_table(path, columns=sorted(names))
    assert num_bytes < path.stat().st_size - 20 * NUM_ROWS  # `junk` is not there


def test_only_the_chunks_of_other_columns_are_left_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_ranges, "SMALLEST_HOLE_BYTES", 1)
    _, num_bytes = with_holes(path, {"id", "label", "tokens"})
    others = sum(size for name, size in chunk_bytes(path).items() if name not in ("id", "label", "tokens"))
    assert num_bytes == path.stat().st_size - others
    assert others > 20 * NUM_ROWS


def test_all_columns_are_the_whole_file_and_a_range_is_at_most_as_long_as_a_request(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_ranges, "LARGEST_RANGE_BYTES", 100_000)
    footer, num_bytes = pq.read_metadata(path), path.stat().st_size
    ranges = needed_ranges(footer, set(columns()), num_bytes)
    assert [start for start, _ in ranges] == list(range(0, num_bytes, 100_000)) and ranges[-1][1] == num_bytes


def test_small_holes_are_fetched_with_what_is_around_them(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    footer, num_bytes = pq.read_metadata(path), path.stat().st_size
    monkeypatch.setattr(parquet_ranges, "SMALLEST_HOLE_BYTES", num_bytes)
    assert needed_ranges(footer, {"id"}, num_bytes) == [(0, num_bytes)]
