"""Sources in a bucket: files to put there, the data set that is made of them, and what was fetched of them."""

from pathlib import Path

from storage.datasets import DatasetManifest
from storage.objects.local_store import LocalStore
from storage.objects.s3.address import SourceBucket
from storage.objects.s3.connection import S3Connection
from tasks.configuration.run import DataConfig
from tasks.data.pipeline import prepare_dataset
from tests.helpers.faulty_proxy import FaultyProxy
from tests.helpers.parquet import text_columns, write_parquet, write_table
from tests.helpers.s3_server import BUCKET

NUM_ROWS = 300
ODD = "it's [1] of 100% & a+b=c"


def open_bucket() -> S3Connection:
    """The bucket of the tests, as a source."""
    return S3Connection(SourceBucket(BUCKET))


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


def fetched_bytes(proxy: FaultyProxy, part: str) -> list[int]:
    """How many bytes each ranged request for an object asked for."""
    found = []
    for (method, path), headers in zip(proxy.requests, proxy.headers, strict=True):
        if method == "GET" and part in path:
            first, last = headers["Range"].removeprefix("bytes=").split("-")
            found.append(int(last) - int(first) + 1)
    return found
