"""What an audit reads of a data set, and how it counts uses: the samples that it asks for, in any order."""

import errno
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.datasets import DatasetManifest, dataset_key
from storage.errors import ConfigurationError, CorruptObjectError, ObjectMissingError
from storage.objects.local_store import LocalStore
from tasks.audits.epoch_uses import EpochCount, EpochUses
from tasks.audits.samples import AuditedSamples
from tasks.data.shard import SHARD_SCHEMA, ShardFile
from tests.helpers.datasets import GROUP_ROWS, SHARD_ROWS, publish_small_dataset
from tests.helpers.ledgers import row_id
from training.data.order import RowOrder
from training.data.reading import SampleReader

NUM_ROWS = 300


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def dataset(store: LocalStore, tmp_path: Path) -> DatasetManifest:
    return publish_small_dataset(store, tmp_path / "rows", NUM_ROWS)


@pytest.fixture
def samples(store: LocalStore, dataset: DatasetManifest, tmp_path: Path) -> AuditedSamples:
    (tmp_path / "kept").mkdir()
    return AuditedSamples(store, dataset, tmp_path / "kept")


def test_rows_of_all_shards_are_read_in_any_order_each_once_and_no_others(
    store: LocalStore, dataset: DatasetManifest, samples: AuditedSamples, tmp_path: Path
) -> None:
    lengths = SampleReader(store, dataset, "train", tmp_path / "samples").read(RowOrder(NUM_ROWS, 16), 0, 300).lengths
    asked = [299, 0, SHARD_ROWS, SHARD_ROWS - 1, GROUP_ROWS, 0, 299, -1, NUM_ROWS, 5000, 150]
    for rows in (asked, [], [7], range(NUM_ROWS)):
        table = samples.read(np.array(rows, np.int64))
        found = table.column("row").to_pylist()
        assert found == sorted({row for row in rows if 0 <= row < NUM_ROWS})
        assert table.column("id").to_pylist() == [row_id(row) for row in found]
        assert table.column("length").to_pylist() == lengths[found].tolist()
    assert samples.find_ids([20, 3, 700]) == {3: row_id(3), 20: row_id(20)}


def test_only_shards_with_a_row_that_was_asked_for_are_read_and_each_once(
    samples: AuditedSamples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    open_one = LocalStore.open

    def open_and_note(store: LocalStore, key: str) -> io.RawIOBase:
        opened.append(key.rpartition("/")[2])
        return open_one(store, key)

    monkeypatch.setattr(LocalStore, "open", open_and_note)
    for rows in ([70, 299], [71, 290], [299]):
        samples.read(np.array(rows))
    assert sorted(opened) == ["train-00001.parquet", "train-00004.parquet"]
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["1.arrow", "4.arrow"]


def test_a_shard_that_is_missing_or_shorter_than_published_is_an_error_of_its_own(
    store: LocalStore, dataset: DatasetManifest, samples: AuditedSamples
) -> None:
    key = dataset_key(dataset.digest, "train-00001.parquet")
    path = store.fetch(key)
    whole = path.read_bytes()
    for cut in (0, 3, 12, 200):
        path.write_bytes(whole[:cut])
        with pytest.raises(
            CorruptObjectError, match=r"train-00001\.parquet cannot be read: .*Restore it from a backup"
        ):
            samples.read(np.array([70]))
    store.delete(key)
    with pytest.raises(ObjectMissingError):
        samples.read(np.array([70]))


def test_a_shard_that_was_replaced_by_another_is_an_error_though_it_has_as_many_rows(
    store: LocalStore, dataset: DatasetManifest, samples: AuditedSamples
) -> None:
    path = store.fetch(dataset_key(dataset.digest, "train-00001.parquet"))
    table = pq.read_table(path).combine_chunks()
    labels = pa.array(np.roll(np.asarray(table.column("label")), 1), pa.int32())
    with ShardFile(path, GROUP_ROWS) as shard:
        shard.write(table.set_column(1, SHARD_SCHEMA.field("label"), labels))
    with pytest.raises(CorruptObjectError, match=r"cannot be read: (its footer has SHA-256|it has \d[\d,]* bytes)"):
        samples.read(np.array([70]))


def test_a_folder_without_room_is_said_and_is_no_fault_of_the_data_set(
    samples: AuditedSamples, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pa.ipc, "new_file", fail)
    with pytest.raises(ConfigurationError, match=r"cannot be kept in .*No space left.*set TMPDIR to a folder on a lar"):
        samples.read(np.array([70]))


def test_uses_are_counted_however_they_are_assigned_over_spans() -> None:
    epochs, rows = np.repeat([3, 4, 5], 21), np.tile(np.arange(21), 3)
    epochs, rows = np.append(epochs, [4, 4, 9]), np.append(rows, [20, -1, 7])  # twice, not there, of another epoch
    rows[0] = 21  # instead of row 0; not there either
    for shuffle in (np.arange(66), np.random.Generator(np.random.Philox(key=1)).permutation(66)):
        uses = EpochUses(range(2, 6), 21)
        for places in np.array_split(shuffle, 7):
            uses.add(epochs[places], rows[places])
        assert uses.counts() == [EpochCount(3, 21, 20), EpochCount(4, 23, 21), EpochCount(5, 21, 21)]
