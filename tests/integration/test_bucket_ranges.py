"""How much of a source in a bucket is fetched: what is needed, once, and hardly more."""

import random
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.objects.s3 import reader
from storage.objects.s3.reader import open_object, open_stream
from tasks.data.readers.arrow_files import open_arrow_file
from tasks.data.readers.check import check_columns
from tasks.data.sources.columns import named_columns
from tasks.data.sources.files import find_files
from tests.helpers.bucket_sources import fetched_bytes, open_bucket, prepared, write_parts
from tests.helpers.faulty_proxy import FaultyProxy
from tests.helpers.parquet import text_config, write_parquet, write_table
from tests.helpers.s3_server import put_object, upload_folder

# Columns of which one is read: long enough for requests of their own in each row group.
WIDE = {"text": 240, "unread": 500, "label": 3, "more": 40, "last": 700}
WIDE_ROWS, WIDE_GROUP = 12_000, 3_000


def wide_columns() -> dict[str, Any]:
    generator = random.Random(0)
    columns: dict[str, Any] = {
        name: [generator.randbytes(size // 2).hex() for _ in range(WIDE_ROWS)] for name, size in WIDE.items()
    }
    return columns | {"label": [f"c{i % 3}" for i in range(WIDE_ROWS)]}


def test_of_parquet_the_columns_that_are_needed_are_fetched_once_and_hardly_more(
    s3_proxy: FaultyProxy, tmp_path: Path
) -> None:
    path = write_parquet(tmp_path / "data" / "a.parquet", wide_columns(), WIDE_GROUP)
    config = text_config(upload_folder(tmp_path / "data"), label="label", id=None)
    files = find_files(config.source)
    columns = {column for column, _ in named_columns(config)}
    brought = files[0].bring(columns, tmp_path / "brought")
    footer = pq.read_metadata(path)
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    needed = sum(group.column(index).total_compressed_size for group in groups for index in (0, 2))
    asked = fetched_bytes(s3_proxy, "a.parquet")
    assert needed <= sum(asked) <= 1.1 * needed < 0.2 * path.stat().st_size
    assert len(asked) <= 2 * len(groups) + 2
    local = brought.rows
    assert local.stat().st_size == path.stat().st_size
    assert 512 * local.stat().st_blocks <= 1.2 * needed
    read = ["text", "label"]
    assert pq.read_table(local, columns=read) == pq.read_table(path, columns=read)


def test_of_parquet_the_row_groups_that_are_needed_are_fetched_and_hardly_more(
    s3_proxy: FaultyProxy, tmp_path: Path
) -> None:
    path = write_parquet(tmp_path / "data" / "a.parquet", wide_columns(), WIDE_GROUP)
    config = text_config(upload_folder(tmp_path / "data"), label="label", id=None)
    (file,) = find_files(config.source)
    rows = range(WIDE_GROUP + 1, 2 * WIDE_GROUP)
    brought = file.bring({"text", "label"}, tmp_path / "brought", rows)
    group = pq.read_metadata(path).row_group(1)
    needed = sum(group.column(index).total_compressed_size for index in (0, 2))
    assert needed <= sum(fetched_bytes(s3_proxy, "a.parquet")) <= 1.1 * needed + (192 << 10)
    with duckdb.connect() as connection:
        wanted = f"SELECT text, label FROM read_parquet('{{}}') WHERE file_row_number BETWEEN {rows[0]} AND {rows[-1]}"
        found = [connection.sql(wanted.format(place)).fetchall() for place in (brought.rows, path)]
    assert found[0] == found[1] and len(found[0]) == len(rows)


def test_of_arrow_files_the_columns_that_are_needed_are_fetched_and_hardly_more(
    s3_proxy: FaultyProxy, tmp_path: Path
) -> None:
    path = tmp_path / "data" / "a.arrow"
    path.parent.mkdir()
    table = pa.table(wide_columns())
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=WIDE_GROUP)
    (file,) = find_files(upload_folder(tmp_path / "data"))
    with open_arrow_file(file, {"text", "label"}) as (schema, batches):
        found = pa.Table.from_batches(list(batches), schema)
    assert found == table.select(["text", "label"])
    needed = sum(column.nbytes for column in found.columns)
    assert sum(fetched_bytes(s3_proxy, "a.arrow")) <= 1.1 * needed


def test_a_look_at_the_columns_fetches_little_of_a_large_file(s3_proxy: FaultyProxy, tmp_path: Path) -> None:
    for kind in ("parquet", "csv", "arrow"):
        path = write_table(tmp_path / kind / f"a.{kind}", wide_columns())
        config = text_config(upload_folder(path.parent), label="label", id=None)
        check_columns(find_files(config.source), config)
        assert sum(fetched_bytes(s3_proxy, f"a.{kind}")) <= 128 << 10
        assert path.stat().st_size > 4 << 20


def test_a_file_in_a_bucket_reads_like_one_on_disk_wherever_it_is_read(
    s3_proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MOST_BYTES", 3 << 17)
    data = random.Random(1).randbytes(3_000_000)
    found = put_object("seek.bin", data)
    generator = random.Random(2)
    with open_object(open_bucket(), "seek.bin", found) as file:
        for _ in range(200):
            start, size = generator.randrange(len(data)), generator.choice([1, 100, 70_000, 900_000])
            if generator.random() < 0.5:
                start = file.tell()
            file.seek(start)
            assert file.read(size) == data[start : start + size]
        assert file.seek(-10, 2) == len(data) - 10 and file.read() == data[-10:] and file.read(1) == b""
    asked = len(s3_proxy.requests)
    with open_stream(open_bucket(), "seek.bin", found) as stream:
        assert stream.read() == data
    sizes = fetched_bytes(s3_proxy, "seek.bin")[-(len(s3_proxy.requests) - asked) :]
    assert sum(sizes) == len(data) and (sizes.count(reader.FIRST_BYTES), sizes.count(reader.MOST_BYTES)) == (1, 7)


def test_a_file_whose_hash_is_known_is_not_fetched_again(s3_proxy: FaultyProxy, tmp_path: Path) -> None:
    config = text_config(upload_folder(write_parts(tmp_path / "data", "csv")))
    first = prepared(config, tmp_path)
    asked = len(s3_proxy.requests)
    assert prepared(config, tmp_path) == first
    sizes = fetched_bytes(s3_proxy, ".csv")
    assert len(s3_proxy.requests) - asked == 1 + 3  # the listing, and a look at the header of each file
    assert len(sizes) == 3 * 3 + 3
