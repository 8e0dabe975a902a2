"""A source in a bucket: the same data set as from a folder with the same files, and each mistake is one clear error.

Servers differ in what they answer: what matters most is tried on moto and on Ceph.
"""

import errno
import os
import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.datasets import DatasetManifest
from storage.errors import ConfigurationError, ContractError, StoreError
from storage.objects.local_store import LocalStore
from storage.objects.s3 import connection as s3_connection
from storage.objects.s3 import reader
from storage.objects.s3.address import SourceBucket
from storage.objects.s3.connection import S3Connection, connect
from storage.objects.s3.reader import open_object, open_stream
from tasks.configuration import DataConfig
from tasks.data.pipeline import prepare_dataset
from tasks.data.readers.arrow_files import open_arrow_file
from tasks.data.readers.check import check_columns
from tasks.data.readers.fetching import fetch_columns
from tasks.data.sources.files import find_files
from tests.helpers.faulty_proxy import Failure, FaultyProxy, running_proxy
from tests.helpers.parquet import text_columns, text_config, token_columns, token_config, write_parquet, write_table
from tests.helpers.s3_server import BUCKET, CREDENTIALS, put_object, running_s3_server, upload_folder, use_s3

NUM_ROWS = 300
METADATA: dict[str, Any] = {"numeric": ["length", "score"], "categorical": ["region"]}
ODD = "it's [1] of 100% & a+b=c"


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    with running_s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def proxy(s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """A proxy that boto3 takes for the server, for a client that is in a hurry."""
    profile = tmp_path / "aws.ini"
    profile.write_text("[default]\nread_timeout = 5\nconnect_timeout = 5\n")
    monkeypatch.setattr(s3_connection, "FIRST_PAUSE_SECONDS", 0.01)
    with running_proxy(s3_endpoint) as running:
        use_s3(monkeypatch, running.endpoint, AWS_CONFIG_FILE=str(profile))
        yield running


def bucket() -> S3Connection:
    return connect(SourceBucket(BUCKET))


def prepared(config: DataConfig, folder: Path) -> tuple[DatasetManifest, dict[str, bytes]]:
    """The data set, and every object of the store that it was published in."""
    store = LocalStore(folder / "store")
    manifest = prepare_dataset(config, store, folder / "scratch")
    assert not list((folder / "scratch").glob("prepare-*"))
    return manifest, {key: store.read(key) for key in store.list_keys("datasets/")}


def write_parts(folder: Path, kind: str) -> Path:
    """Three files, two of them in folders as Hive makes them; those of Parquet with row groups of three sizes."""
    for part, (name, row_group_rows) in enumerate({"z": 7, "year=2025/month=1/a": 64, f"{ODD}/a": None}.items()):
        columns = text_columns(NUM_ROWS // 3, first=part * NUM_ROWS // 3)
        columns |= {"year": [part] * (NUM_ROWS // 3), "unread": ["x" * 50] * (NUM_ROWS // 3)}
        if kind == "parquet":
            write_parquet(folder / f"{name}.parquet", columns, row_group_rows)
        else:
            write_table(folder / f"{name}.{kind}", columns)
    return folder


def assert_same_from_a_bucket(make_config: Callable[[str], DataConfig], folder: Path, root: Path) -> None:
    in_folder = prepared(make_config(str(folder)), root / "from-folder")
    in_bucket = prepared(make_config(upload_folder(folder)), root / "from-bucket")
    assert in_bucket == in_folder


@pytest.mark.parametrize("kind", ["parquet", "csv", "tsv.gz", "jsonl", "feather"])
def test_the_same_files_give_the_same_data_set_from_a_folder_and_from_a_bucket(
    proxy: FaultyProxy, tmp_path: Path, kind: str
) -> None:
    folder = write_parts(tmp_path / "data", kind)
    assert_same_from_a_bucket(lambda source: text_config(source, **METADATA), folder, tmp_path)


def test_a_real_server_gives_the_same_data_set_as_a_folder(
    ceph_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_s3(monkeypatch, ceph_endpoint)
    for kind in ("parquet", "csv.gz", "arrow"):
        folder = write_parts(tmp_path / kind / "data", kind)
        changes = METADATA | {"id": None, "max_missing_fraction": 0.5}
        assert_same_from_a_bucket(lambda source: text_config(source, **changes), folder, tmp_path / kind)  # noqa: B023
    with pytest.raises(StoreError, match=r"Cannot use the source s3://no-such-bucket .*There is no bucket"):
        find_files("s3://no-such-bucket/data/")


def test_tokens_and_types_that_differ_between_files_are_the_same_from_a_bucket(
    proxy: FaultyProxy, tmp_path: Path
) -> None:
    for part, kind in enumerate((pa.int8(), pa.float32(), pa.int64())):
        columns = token_columns(100, seed=part) | {"number": pa.array(range(100), pa.int64()).cast(kind)}
        columns["sample_id"] = list(range(100 * part, 100 * (part + 1)))
        columns["category"] = pa.array([f"{i % 7}.0" for i in range(100)]).dictionary_encode()
        write_parquet(tmp_path / "data" / f"{part}.parquet", columns, 33)
    split = {"by": "column", "column": "shard_id"}
    changes = {"numeric": ["number"], "categorical": ["category"], "split": split}
    assert_same_from_a_bucket(lambda source: token_config(source, **changes), tmp_path / "data", tmp_path)


TREE = (
    "a.parquet",
    "b.parquet",
    "ab/c.parquet",
    "ab/deep/er/d.parquet",
    "ab/.hidden/e.parquet",
    "_temporary/f.parquet",
    ".hidden.parquet",
    "year=2024/a.parquet",
    "year=2025/a.parquet",
    "[x]/a.parquet",
    "[x]/*.parquet",
    "x/a.parquet",
    "notes.txt",
    "_SUCCESS",
)
PATTERNS = (
    *("", "a.parquet", "ab", "ab/", "*", "*.parquet", "**", "**/*.parquet", "**/a.parquet", "*/*.parquet", "?.parquet"),
    *("**/deep/**/*.parquet", "ab/**/d.parquet", "year=*/a.parquet", "year=202[4-5]/*", "year=202[!4]/**", "ab/.*/*"),
    *("[x]", "[x]/*.parquet", "[x]/[a]*", "[[]x]/a*", ".*", "_*/*", "no*", "a*/**/**/*", "ab/*/", "no", "ab/no*"),
)


def test_an_address_names_the_files_that_the_same_path_names(proxy: FaultyProxy, tmp_path: Path) -> None:
    for name in TREE:
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_bytes(b"some bytes")
    address = upload_folder(tmp_path / "data")
    put_object(f"{address.removeprefix(f's3://{BUCKET}/')}ab/", b"")  # as a console makes a folder
    found = {pattern: names(f"{tmp_path}/data/{pattern}") for pattern in PATTERNS}
    assert {pattern: names(address + pattern) for pattern in found} == found
    assert found["[x]/*.parquet"] == ["*.parquet"] and found["*/*.parquet"] is not None and found["no"] is None
    assert found["a*/**/**/*"] == ["ab/c.parquet", "ab/deep/er/d.parquet"]  # each once


def names(source: str) -> list[str] | None:
    """The names of the source's files; None where there are none, or files of several formats."""
    try:
        return [file.name for file in find_files(source)]
    except ConfigurationError:
        return None


def test_a_listing_of_many_pages_is_whole(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = uuid.uuid4().hex
    for number in range(7):
        put_object(f"{prefix}/{number}.parquet", b"")
    pages = S3Connection.pages
    monkeypatch.setattr(S3Connection, "pages", lambda *given, **more: pages(*given, **more, MaxKeys=2))
    assert names(f"s3://{BUCKET}/{prefix}") == [f"{number}.parquet" for number in range(7)]
    assert proxy.count("GET", "list-type=2") == 4


# Columns of which one is read: long enough for requests of their own in each row group.
WIDE = {"text": 240, "unread": 500, "label": 3, "more": 40, "last": 700}
WIDE_ROWS, WIDE_GROUP = 12_000, 3_000


def wide_columns() -> dict[str, Any]:
    generator = random.Random(0)
    columns: dict[str, Any] = {
        name: [generator.randbytes(size // 2).hex() for _ in range(WIDE_ROWS)] for name, size in WIDE.items()
    }
    return columns | {"label": [f"c{i % 3}" for i in range(WIDE_ROWS)]}


def fetched_bytes(proxy: FaultyProxy, part: str) -> list[int]:
    """How many bytes each ranged request for an object asked for."""
    found = []
    for (method, path), headers in zip(proxy.requests, proxy.headers, strict=True):
        if method == "GET" and part in path:
            first, last = headers["Range"].removeprefix("bytes=").split("-")
            found.append(int(last) - int(first) + 1)
    return found


def test_of_parquet_the_columns_that_are_needed_are_fetched_once_and_hardly_more(
    proxy: FaultyProxy, tmp_path: Path
) -> None:
    path = write_parquet(tmp_path / "data" / "a.parquet", wide_columns(), WIDE_GROUP)
    config = text_config(upload_folder(tmp_path / "data"), label="label", id=None)
    files = find_files(config.source)
    brought = fetch_columns(files, config, tmp_path / "brought")
    footer = pq.read_metadata(path)
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    needed = sum(group.column(index).total_compressed_size for group in groups for index in (0, 2))
    asked = fetched_bytes(proxy, "a.parquet")
    assert needed <= sum(asked) <= 1.1 * needed < 0.2 * path.stat().st_size
    assert len(asked) <= 2 * len(groups) + 2
    local = brought[0].rows
    assert local.stat().st_size == path.stat().st_size
    assert 512 * local.stat().st_blocks <= 1.2 * needed
    columns = ["text", "label"]
    assert pq.read_table(local, columns=columns) == pq.read_table(path, columns=columns)


def test_of_arrow_files_the_columns_that_are_needed_are_fetched_and_hardly_more(
    proxy: FaultyProxy, tmp_path: Path
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
    assert sum(fetched_bytes(proxy, "a.arrow")) <= 1.1 * needed


def test_a_look_at_the_columns_fetches_little_of_a_large_file(proxy: FaultyProxy, tmp_path: Path) -> None:
    for kind in ("parquet", "csv", "arrow"):
        path = write_table(tmp_path / kind / f"a.{kind}", wide_columns())
        config = text_config(upload_folder(path.parent), label="label", id=None)
        check_columns(find_files(config.source), config)
        assert sum(fetched_bytes(proxy, f"a.{kind}")) <= 128 << 10
        assert path.stat().st_size > 4 << 20


def test_a_file_in_a_bucket_reads_like_one_on_disk_wherever_it_is_read(
    proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MOST_BYTES", 3 << 17)
    data = random.Random(1).randbytes(3_000_000)
    found = put_object("seek.bin", data)
    generator = random.Random(2)
    with open_object(bucket(), "seek.bin", found) as file:
        for _ in range(200):
            start, size = generator.randrange(len(data)), generator.choice([1, 100, 70_000, 900_000])
            if generator.random() < 0.5:
                start = file.tell()
            file.seek(start)
            assert file.read(size) == data[start : start + size]
        assert file.seek(-10, 2) == len(data) - 10 and file.read() == data[-10:] and file.read(1) == b""
    asked = len(proxy.requests)
    with open_stream(bucket(), "seek.bin", found) as stream:
        assert stream.read() == data
    sizes = fetched_bytes(proxy, "seek.bin")[-(len(proxy.requests) - asked) :]
    assert sum(sizes) == len(data) and (sizes.count(reader.FIRST_BYTES), sizes.count(reader.MOST_BYTES)) == (1, 7)


@pytest.mark.parametrize("kind", ["parquet", "csv", "feather"])
def test_an_object_that_is_replaced_under_way_is_one_clear_error(
    proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = write_parts(tmp_path / "data", kind)
    address = upload_folder(folder)
    changed = f"{address}z.{kind}"

    def replace(phase: str, share: float) -> None:
        if phase == "fingerprint" and share == 1.0:
            put_object(changed.removeprefix(f"s3://{BUCKET}/"), (folder / f"z.{kind}").read_bytes() + b"\n")

    with pytest.raises(StoreError) as caught:
        prepare_dataset(text_config(address), LocalStore(tmp_path / "store"), tmp_path / "scratch", replace)
    assert (
        str(caught.value) == f"{changed} was replaced while it was read. Run again when no other program writes to it."
    )
    assert not (tmp_path / "store").exists()


def test_an_object_that_is_cut_off_or_deleted_under_way_is_one_clear_error(proxy: FaultyProxy) -> None:
    found = put_object("gone.bin", b"x" * 300_000)
    put_object("gone.bin", b"x")
    with open_object(bucket(), "gone.bin", found) as file, pytest.raises(StoreError, match=r"gone\.bin was replaced"):
        file.seek(200_000)
        file.read(10)
    bucket().client.delete_object(Bucket=BUCKET, Key="gone.bin")
    with open_stream(bucket(), "gone.bin", found) as file, pytest.raises(StoreError, match=r"gone\.bin was deleted"):
        file.read(10)


@pytest.mark.parametrize("failure", [Failure.SLOW_DOWN, Failure.RESET, Failure.CUT])
def test_a_request_that_fails_is_made_again(proxy: FaultyProxy, tmp_path: Path, failure: Failure) -> None:
    folder = write_parts(tmp_path / "data", "parquet")
    address = upload_folder(folder)
    listing = proxy.fail(failure, "GET", "list-type=2")
    objects = proxy.fail(failure, "GET", "z.parquet", times=3)
    manifest, _ = prepared(text_config(address), tmp_path / "from-bucket")
    assert (listing.fired, objects.fired) == (1, 3)
    assert manifest == prepared(text_config(folder), tmp_path / "from-folder")[0]


def test_a_disk_that_is_full_is_told_with_the_folder(
    proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", fail)
    address = upload_folder(write_parts(tmp_path / "data", "parquet"))
    with pytest.raises(StoreError, match=r"Cannot write working files in .*/scratch: No space left on device"):
        prepared(text_config(address), tmp_path)
    assert not list((tmp_path / "scratch").glob("prepare-*"))


def test_a_file_whose_hash_is_known_is_not_fetched_again(proxy: FaultyProxy, tmp_path: Path) -> None:
    config = text_config(upload_folder(write_parts(tmp_path / "data", "csv")))
    first = prepared(config, tmp_path)
    asked = len(proxy.requests)
    assert prepared(config, tmp_path) == first
    sizes = fetched_bytes(proxy, ".csv")
    assert len(proxy.requests) - asked == 1 + 3  # the listing, and a look at the header of each file
    assert len(sizes) == 3 * 3 + 3


def broken_source(source: str, error: type[Exception] = ConfigurationError) -> str:
    with pytest.raises(error) as caught:
        find_files(source)
    return str(caught.value)


def test_an_address_that_names_nothing_is_an_error_that_says_what_is_there(proxy: FaultyProxy) -> None:
    prefix = uuid.uuid4().hex
    put_object(f"{prefix}/intents/notes.txt", b"")
    place = f"s3://{BUCKET}/{prefix}"
    assert f"{place}/intents/ has no *.parquet files, nor others" in broken_source(f"{place}/intents/")
    assert f"there is nothing at {place}/intent. There is {place}/intents. Set" in broken_source(f"{place}/intent")
    assert f"no object matches {place}/*/*.parquet. Correct the pattern" in broken_source(f"{place}/*/*.parquet")
    assert f"there is nothing at s3://{BUCKET}/{prefix}x/." in broken_source(f"{place}x/")
    put_object(f"{prefix}/mixed/a.csv", b"")
    put_object(f"{prefix}/mixed/a.jsonl", b"")
    assert "has 1 CSV (a.csv), 1 JSON Lines (a.jsonl)" in broken_source(f"{place}/mixed")


@pytest.mark.parametrize("source", ["s3://", "s3:///x", "s3://b", "s3://key:secret@bucket/x", "s3://bucket:9000/x"])
def test_an_address_of_another_form_is_an_error_without_the_secret_in_it(proxy: FaultyProxy, source: str) -> None:
    message = broken_source(source)
    assert "is not an address of the form s3://bucket/prefix/. Endpoint, region and credentials do not" in message
    assert "secret" not in message and proxy.requests == []


def test_a_bucket_that_cannot_be_listed_is_one_clear_error(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    message = broken_source("s3://no-such-bucket/data", StoreError)
    assert message.startswith(f"Cannot use the source s3://no-such-bucket at {proxy.endpoint}: 404 NoSuchBucket")
    assert "check `data.source` and AWS_ENDPOINT_URL_S3" in message
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert "data.source = 's3://bucket': boto3 cannot be set up" in broken_source("s3://bucket/data")
    monkeypatch.delenv("AWS_PROFILE")
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    message = broken_source("s3://bucket/data", StoreError)
    assert message.startswith("No credentials for the source s3://bucket") and "AWS_PROFILE" in message


def test_a_server_that_is_not_there_is_one_clear_error(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    message = broken_source("s3://bucket/data", StoreError)
    assert message.startswith("Cannot reach the source s3://bucket at http://127.0.0.1:1")


MISTAKES: dict[str, tuple[str, bytes, str]] = {
    "an empty file": ("b.parquet", b"", "b.parquet is empty"),
    "a file that was cut off": ("b.parquet", b"PAR1" + bytes(500), "cannot be read"),
    "a file that is not Parquet": ("b.parquet", b"sample_id,text\n1,hello\n", "something that is not Parquet"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_file_that_cannot_be_read_is_named_by_its_address(proxy: FaultyProxy, tmp_path: Path, mistake: str) -> None:
    name, content, expected = MISTAKES[mistake]
    address = upload_folder(write_parquet(tmp_path / "data" / "a.parquet", text_columns(20)).parent)
    put_object(f"{address.removeprefix(f's3://{BUCKET}/')}{name}", content)
    with pytest.raises(ContractError) as caught:
        prepared(text_config(address), tmp_path)
    assert f"{address}{name}" in str(caught.value) and expected in str(caught.value)


def test_damage_in_the_middle_of_a_file_is_told_with_its_address_alone(proxy: FaultyProxy, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "data" / "a.parquet", text_columns(200))
    content = bytearray(path.read_bytes())
    content[4:600] = bytes(596)
    path.write_bytes(content)
    address = upload_folder(path.parent)
    with pytest.raises(ContractError) as caught:
        prepared(text_config(address), tmp_path)
    assert f"The file {address}a.parquet cannot be read to its end" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_a_broken_line_is_told_with_address_and_number(proxy: FaultyProxy, tmp_path: Path) -> None:
    path = write_table(tmp_path / "data" / "a.csv", text_columns(200))
    path.write_bytes(path.read_bytes() + b"a,b\n")
    address = upload_folder(path.parent)
    with pytest.raises(ContractError, match=rf"The file {address}a\.csv is broken in line 202"):
        prepared(text_config(address), tmp_path)
