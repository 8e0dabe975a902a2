"""Windows of samples on local disk: decoded once for all ranks of a machine, and removed when they are done with."""

import io
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from storage.datasets import DatasetManifest
from storage.errors import StoreError
from storage.objects.local_store import LocalStore
from tests.helpers.commands import wait_until
from tests.helpers.datasets import GROUP_ROWS, publish_small_dataset
from training.data import footers
from training.data.footers import _read_footer
from training.data.order import WINDOW_GROUPS, RowOrder, SampleOrder, Window
from training.data.reading import SampleReader
from training.data.samples import Samples
from training.data.shared_arrays import KEPT_SETS

ROWS = 5 * WINDOW_GROUPS * GROUP_ROWS + 7
NUM_WINDOWS = 6


@pytest.fixture
def dataset(store: LocalStore, tmp_path: Path) -> DatasetManifest:
    return publish_small_dataset(store, tmp_path / "work", rows=ROWS)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first row of each window that is decoded, by whichever reader."""
    found: list[int] = []
    decode = SampleReader._decode

    def decode_and_tell(reader: SampleReader, rows: NDArray[np.int64]) -> Samples:
        found.append(int(rows[0]))
        return decode(reader, rows)

    monkeypatch.setattr(SampleReader, "_decode", decode_and_tell)
    return found


def read_epoch(reader: SampleReader, order: SampleOrder, batch_size: int = 100) -> list[int]:
    """The rows of the first epoch, as they are read."""
    starts = range(0, ROWS, batch_size)
    return [row for start in starts for row in reader.read(order, start, min(batch_size, ROWS - start)).rows.tolist()]


def test_a_window_is_decoded_once_for_all_ranks_of_a_machine(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path, decoded: list[int]
) -> None:
    readers = [SampleReader(store, dataset, "train", tmp_path / "samples") for _ in range(4)]
    order = SampleOrder(ROWS, GROUP_ROWS, seed=4)
    for start in range(0, ROWS, 100):
        count = min(100, ROWS - start)
        rows = [reader.read(order, start, count).rows.tolist() for reader in readers]
        assert rows == [order.rows(start, count).tolist()] * 4
    assert len(decoded) == NUM_WINDOWS


def test_windows_that_are_done_with_are_removed_and_a_slower_rank_decodes_them_again(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path, decoded: list[int]
) -> None:
    folder, order = tmp_path / "samples", SampleOrder(ROWS, GROUP_ROWS, seed=4)
    slow, fast = (SampleReader(store, dataset, "train", folder) for _ in range(2))
    before = slow.read(order, 0, 50)
    assert read_epoch(fast, order) == order.rows(0, ROWS).tolist()
    assert len(list(folder.glob("train-samples-*"))) == KEPT_SETS
    assert before.rows.tolist() == order.rows(0, 50).tolist()  # what is mapped stays
    assert read_epoch(slow, order) == order.rows(0, ROWS).tolist()
    assert NUM_WINDOWS < len(decoded) < 2 * NUM_WINDOWS


def test_another_order_in_the_same_folder_is_not_mixed_up_with_it(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path
) -> None:
    for seed in (4, 5):
        reader, order = SampleReader(store, dataset, "train", tmp_path / "samples"), SampleOrder(ROWS, GROUP_ROWS, seed)
        assert reader.read(order, 0, 50).rows.tolist() == order.rows(0, 50).tolist()


def test_the_next_window_is_decoded_while_this_one_is_read(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path, decoded: list[int]
) -> None:
    order = SampleOrder(ROWS, GROUP_ROWS, seed=4)
    reader = SampleReader(store, dataset, "train", tmp_path / "samples", looks_ahead=True)
    reader.read(order, 0, 1)
    assert wait_until(lambda: len(decoded) == 2)
    first_rows = [int(order.window_rows(row_range.window)[0]) for row_range in order.row_ranges(0, ROWS)]
    assert decoded == first_rows[:2]


@pytest.mark.parametrize("looks_ahead", [False, True])
def test_one_that_reads_for_all_keeps_windows_in_memory_and_maps_those_of_others(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path, decoded: list[int], looks_ahead: bool
) -> None:
    folder, order = tmp_path / "samples", SampleOrder(ROWS, GROUP_ROWS, seed=4)
    SampleReader(store, dataset, "train", folder).read(order, 0, 1)
    files = sorted(folder.glob("train-samples-*"))
    assert len(files) == len(decoded) == 1
    reader = SampleReader(store, dataset, "train", folder, looks_ahead, reads_for_all=True)
    assert read_epoch(reader, order) == order.rows(0, ROWS).tolist()
    assert sorted(folder.glob("train-samples-*")) == files
    if reader._ahead is not None:
        reader._ahead.shutdown()
    assert len(decoded) == NUM_WINDOWS + looks_ahead  # and the first window of the next epoch


def test_rows_that_are_looked_at_are_decoded_ahead_up_to_the_last_that_is_looked_at(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path, decoded: list[int]
) -> None:
    window_rows = WINDOW_GROUPS * GROUP_ROWS
    order = RowOrder(ROWS, GROUP_ROWS, num_read=window_rows + 1)
    reader = SampleReader(store, dataset, "train", tmp_path / "samples", looks_ahead=True)
    reader.read(order, 0, 1)
    assert wait_until(lambda: len(decoded) == 2)
    reader.read(order, window_rows, 1)
    assert reader._ahead is not None
    reader._ahead.shutdown()
    assert decoded == [0, window_rows]
    whole = RowOrder(ROWS, GROUP_ROWS)
    assert [whole.window_after(Window(0, number)) for number in (4, 5)] == [Window(0, 5), None]


def test_rows_that_are_looked_at_again_are_decoded_once_as_far_as_they_may_be_kept(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path, decoded: list[int]
) -> None:
    order = RowOrder(ROWS, GROUP_ROWS)
    all_bytes = 2 * sum(shard.num_bytes for shard in dataset.splits["train"].shards)
    for kept_bytes, num_decoded in ((all_bytes, NUM_WINDOWS), (0, 2 * NUM_WINDOWS)):
        reader = SampleReader(store, dataset, "train", tmp_path / str(kept_bytes), kept_bytes=kept_bytes)
        decoded.clear()
        for _ in range(2):
            for start in range(0, ROWS, 100):
                reader.read(order, start, min(100, ROWS - start))
        assert len(decoded) == num_decoded


def test_the_footer_of_a_shard_is_read_once_for_all_ranks_and_few_stay_in_memory(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def read_footer(file: io.RawIOBase, likely_bytes: int) -> bytes:
        asked.append(likely_bytes)
        return _read_footer(file, likely_bytes)

    monkeypatch.setattr(footers, "_read_footer", read_footer)
    order = SampleOrder(ROWS, GROUP_ROWS, seed=4)
    for _ in range(3):  # the second one comes when the windows of the first are removed
        reader = SampleReader(store, dataset, "train", tmp_path / "samples")
        read_epoch(reader, order)
        assert 0 < len(reader._row_groups._footers) <= WINDOW_GROUPS
    assert len(asked) == len(dataset.splits["train"].shards) > WINDOW_GROUPS


def test_a_footer_that_is_longer_than_most_is_read_whole(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footers, "FOOTER_BYTES", 9)
    monkeypatch.setattr(footers, "FOOTER_BYTES_PER_GROUP", 0)
    order = SampleOrder(ROWS, GROUP_ROWS, seed=4)
    reader = SampleReader(store, dataset, "train", tmp_path / "samples")
    assert read_epoch(reader, order) == order.rows(0, ROWS).tolist()


def test_no_shard_stays_open(store: LocalStore, dataset: DatasetManifest, tmp_path: Path) -> None:
    reader = SampleReader(store, dataset, "train", tmp_path / "samples")
    read_epoch(reader, SampleOrder(ROWS, GROUP_ROWS, seed=4))
    opened = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert opened and not [path for path in opened if path.startswith(str(store.root))]


def test_a_window_that_was_being_written_when_the_machine_died_is_not_taken_for_one(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = SampleOrder(ROWS, GROUP_ROWS, seed=4)
    calls, contiguous = iter(range(5)), np.ascontiguousarray

    def dies(chunk: NDArray[Any]) -> NDArray[Any]:
        if next(calls) == 4:
            raise KeyboardInterrupt
        return contiguous(chunk)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("training.data.shared_arrays.np.ascontiguousarray", dies)
        SampleReader(store, dataset, "train", tmp_path / "samples").read(order, 0, 50)
    found = SampleReader(store, dataset, "train", tmp_path / "samples").read(order, 0, 50)
    assert found.rows.tolist() == order.rows(0, 50).tolist()


def test_a_disk_without_space_is_one_clear_error(store: LocalStore, dataset: DatasetManifest, tmp_path: Path) -> None:
    order, folder = SampleOrder(ROWS, GROUP_ROWS, seed=4), tmp_path / "samples"
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limit[1]))  # a full disk refuses in the same place
    try:
        with pytest.raises(
            StoreError, match=r"^Cannot keep decoded samples in .*: File too large\. Check that the disk"
        ):
            SampleReader(store, dataset, "train", folder).read(order, 0, 50)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    found = SampleReader(store, dataset, "train", folder).read(order, 0, 50)
    assert found.rows.tolist() == order.rows(0, 50).tolist()


def test_a_folder_that_cannot_be_written_is_one_clear_error(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    reader = SampleReader(store, dataset, "train", tmp_path / "file" / "samples")
    with pytest.raises(StoreError, match=r"^Cannot keep decoded samples in .*: Not a directory\. Check that the disk"):
        reader.read(SampleOrder(ROWS, GROUP_ROWS, seed=4), 0, 1)
