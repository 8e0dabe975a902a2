"""A source in a bucket: the same data set as from a folder with the same files, and the same files by every pattern.

Servers differ in what they answer: what matters most is tried on moto and on Ceph.
"""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage.errors import ConfigurationError, StoreError
from storage.objects.s3.connection import S3Connection
from tasks.configuration.run import DataConfig
from tasks.data.sources.files import find_files
from tests.helpers.bucket_sources import prepared, write_parts
from tests.helpers.faulty_proxy import Failure, FaultyProxy
from tests.helpers.parquet import text_config, token_columns, token_config, write_parquet
from tests.helpers.s3_server import BUCKET, put_object, upload_folder, use_s3

METADATA: dict[str, Any] = {"numeric": ["length", "score"], "categorical": ["region"]}


def assert_same_from_a_bucket(make_config: Callable[[str], DataConfig], folder: Path, root: Path) -> None:
    in_folder = prepared(make_config(str(folder)), root / "from-folder")
    in_bucket = prepared(make_config(upload_folder(folder)), root / "from-bucket")
    assert in_bucket == in_folder


@pytest.mark.parametrize(
    "kind", ["parquet", "csv", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("tsv.gz", "jsonl", "feather"))]
)
def test_the_same_files_give_the_same_data_set_from_a_folder_and_from_a_bucket(
    s3_proxy: FaultyProxy, tmp_path: Path, kind: str
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
    s3_proxy: FaultyProxy, tmp_path: Path
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


def test_an_address_names_the_files_that_the_same_path_names(s3_proxy: FaultyProxy, tmp_path: Path) -> None:
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


def test_a_listing_of_many_pages_is_whole(s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = uuid.uuid4().hex
    for number in range(7):
        put_object(f"{prefix}/{number}.parquet", b"")
    pages = S3Connection.pages
    monkeypatch.setattr(S3Connection, "pages", lambda *given, **more: pages(*given, **more, MaxKeys=2))
    assert names(f"s3://{BUCKET}/{prefix}") == [f"{number}.parquet" for number in range(7)]
    assert s3_proxy.count("GET", "list-type=2") == 4


@pytest.mark.parametrize("failure", [Failure.SLOW_DOWN, Failure.RESET, Failure.CUT])
def test_a_request_that_fails_is_made_again(s3_proxy: FaultyProxy, tmp_path: Path, failure: Failure) -> None:
    folder = write_parts(tmp_path / "data", "parquet")
    address = upload_folder(folder)
    listing = s3_proxy.fail(failure, "GET", "list-type=2")
    objects = s3_proxy.fail(failure, "GET", "z.parquet", times=3)
    manifest, _ = prepared(text_config(address), tmp_path / "from-bucket")
    assert (listing.fired, objects.fired) == (1, 3)
    assert manifest == prepared(text_config(folder), tmp_path / "from-folder")[0]
