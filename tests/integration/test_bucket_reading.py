"""Training on a data set in a bucket: what is fetched of it, and what becomes of errors."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from storage.datasets import DatasetManifest, ShardRecord, dataset_key
from storage.errors import CorruptObjectError, ObjectMissingError, StoreError
from storage.objects import download_cache
from storage.objects.download_cache import DownloadCache
from storage.objects.local_store import LocalStore
from storage.objects.s3.address import parse_s3_address
from storage.objects.s3.connection import S3Connection
from storage.objects.s3.store import S3Store
from storage.objects.store import Store
from tests.helpers import datasets
from tests.helpers.bucket_sources import fetched_bytes
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.faulty_proxy import Failure, FaultyProxy
from tests.helpers.s3_server import open_s3_store
from training.data.order import WINDOW_GROUPS, RowOrder, SampleOrder
from training.data.reading import SampleReader
from training.data.samples import Samples

# Row groups of some 80 KB: much more than a footer has for each, as in any data set that is worth a bucket.
GROUP_ROWS, SHARD_GROUPS, NUM_GROUPS = 128, 8, 3 * WINDOW_GROUPS
NUM_ROWS = NUM_GROUPS * GROUP_ROWS
BATCH = 300
SEED = 4


@pytest.fixture(autouse=True)
def _large_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"GROUP_ROWS": GROUP_ROWS, "SHARD_ROWS": SHARD_GROUPS * GROUP_ROWS}
    for name, value in {**sizes, "MAX_TOKENS": 500, "VOCABULARY_SIZE": 20_000}.items():
        monkeypatch.setattr(datasets, name, value)


@pytest.fixture
def address(s3_proxy: FaultyProxy, tmp_path: Path) -> str:
    return open_s3_store(tmp_path).address


@pytest.fixture
def dataset(address: str, s3_proxy: FaultyProxy, tmp_path: Path) -> DatasetManifest:
    """One in the bucket, which nobody has read yet."""
    published = publish_small_dataset(open_bucket(address, tmp_path), tmp_path / "work", NUM_ROWS)
    s3_proxy.requests.clear()
    s3_proxy.headers.clear()
    return published


def open_bucket(address: str, folder: Path, cached_bytes: int | None = None) -> S3Store:
    """The store as each rank opens it, with copies in a folder that they share."""
    return S3Store(S3Connection(parse_s3_address(address)), DownloadCache(folder / "cache", cached_bytes))


def shards_of(dataset: DatasetManifest) -> list[ShardRecord]:
    return dataset.splits["train"].shards


def size_of(dataset: DatasetManifest) -> int:
    return sum(shard.num_bytes for shard in shards_of(dataset))


def read_epoch(*readers: SampleReader) -> list[Samples]:
    """All batches of an epoch, which the readers read in turns."""
    order, batches = SampleOrder(NUM_ROWS, GROUP_ROWS, SEED), []
    for index, start in enumerate(range(0, NUM_ROWS, BATCH)):
        turn = readers[index % len(readers) :] + readers[: index % len(readers)]
        batches += [reader.read(order, start, min(BATCH, NUM_ROWS - start)) for reader in turn][:1]
    return batches


def assert_equal(found: Samples, expected: Samples) -> None:
    for name in ("rows", "labels", "lengths", "numeric", "categorical"):
        assert np.array_equal(getattr(found, name), getattr(expected, name))
    group = np.array([[len(expected), 500]])
    assert np.array_equal(found.padded_tokens(group), expected.padded_tokens(group))
    assert np.array_equal(found.separated_ids(), expected.separated_ids())


@pytest.mark.parametrize("num_readers", [1, 2])
def test_an_epoch_fetches_each_byte_once_for_a_machine_however_little_of_the_data_set_its_cache_holds(
    s3_proxy: FaultyProxy,
    address: str,
    dataset: DatasetManifest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_readers: int,
) -> None:
    monkeypatch.setattr(download_cache, "IN_USE_SECONDS", 0)
    stores = [open_bucket(address, tmp_path, size_of(dataset) // 10) for _ in range(num_readers)]
    found = read_epoch(*(SampleReader(store, dataset, "train", tmp_path / "samples") for store in stores))
    asked = fetched_bytes(s3_proxy, "/train-")
    # Where footers end is not known before, and of the magic bytes at their beginning nobody has need.
    assert 0.99 * size_of(dataset) <= sum(asked) <= 1.05 * size_of(dataset)
    assert len(asked) == NUM_GROUPS + len(shards_of(dataset))
    assert s3_proxy.count("HEAD", "/train-") < NUM_GROUPS
    assert not (tmp_path / "cache").exists()
    local = LocalStore(tmp_path / "store")
    assert publish_small_dataset(local, tmp_path / "work", NUM_ROWS) == dataset
    expected = read_epoch(SampleReader(local, dataset, "train", tmp_path / "local"))
    for batch, expected_batch in zip(found, expected, strict=True):
        assert_equal(batch, expected_batch)


def test_the_first_batch_fetches_its_windows_row_groups_and_footers_and_nothing_else(
    s3_proxy: FaultyProxy, address: str, dataset: DatasetManifest, tmp_path: Path
) -> None:
    order = SampleOrder(NUM_ROWS, GROUP_ROWS, SEED)
    SampleReader(open_bucket(address, tmp_path), dataset, "train", tmp_path / "samples").read(order, 0, 1)
    asked = fetched_bytes(s3_proxy, "/train-")
    window = next(order.row_ranges(0, 1)).window
    groups = np.unique(order.window_rows(window) // GROUP_ROWS)
    assert len(asked) == len(groups) + len(np.unique(groups // SHARD_GROUPS))
    assert sum(asked) <= 1.05 * size_of(dataset) * len(groups) / NUM_GROUPS


@pytest.mark.parametrize("failure", [Failure.SLOW_DOWN, Failure.RESET, Failure.CUT])
def test_requests_that_fail_are_made_again(
    s3_proxy: FaultyProxy, address: str, dataset: DatasetManifest, tmp_path: Path, failure: Failure
) -> None:
    fault = s3_proxy.fail(failure, "GET", "/train-", times=5)
    order = SampleOrder(NUM_ROWS, GROUP_ROWS, SEED)
    found = SampleReader(open_bucket(address, tmp_path), dataset, "train", tmp_path / "samples").read(order, 0, 50)
    assert fault.fired == 5
    assert found.rows.tolist() == order.rows(0, 50).tolist()


def test_a_damaged_row_group_is_one_clear_error(address: str, dataset: DatasetManifest, tmp_path: Path) -> None:
    store, key = open_bucket(address, tmp_path), dataset_key(dataset.digest, shards_of(dataset)[0].name)
    with store.open(key) as file, pq.ParquetFile(file) as shard:
        place = shard.metadata.row_group(3).column(2).data_page_offset + 1000
    content = bytearray(store.read(key))
    content[place] ^= 1
    store.write(key, bytes(content))
    reader = make_reader(open_bucket(address, tmp_path), dataset, tmp_path)
    with pytest.raises(CorruptObjectError) as caught:
        reader.read(RowOrder(NUM_ROWS, GROUP_ROWS), 0, 1)
    assert str(caught.value).startswith(f"Row group 3 of {address}/{key} is not what was published")
    assert f"Run `holdfast scrub` with the store's address {address}: it reads all files" in str(caught.value)


def test_a_shard_that_is_missing_cut_off_or_replaced_is_one_clear_error(
    address: str, dataset: DatasetManifest, tmp_path: Path
) -> None:
    store, key = open_bucket(address, tmp_path), dataset_key(dataset.digest, shards_of(dataset)[0].name)
    reader, order = make_reader(store, dataset, tmp_path), RowOrder(NUM_ROWS, GROUP_ROWS)
    store.open(key).close()
    other, content = open_bucket(address, tmp_path), store.read(key)
    other.write(key, content + b"\n")
    with pytest.raises(StoreError, match=r"train-00000\.parquet was replaced while it was read"):
        reader.read(order, 0, 1)
    other.delete(key)
    with pytest.raises(ObjectMissingError, match=r"train-00000\.parquet was deleted while it was read"):
        reader.read(order, 0, 1)
    with pytest.raises(ObjectMissingError, match=r"train-00000\.parquet is missing"):
        make_reader(other, dataset, tmp_path).read(order, 0, 1)
    for rest in (content[: len(content) // 2], b"PAR1", b""):
        other.write(key, rest)
        with pytest.raises(CorruptObjectError, match=rf"The footer of {address}/{key} cannot be read"):
            make_reader(open_bucket(address, tmp_path), dataset, tmp_path).read(order, 0, 1)


def make_reader(store: Store, dataset: DatasetManifest, folder: Path) -> SampleReader:
    return SampleReader(store, dataset, "train", folder / "samples")
