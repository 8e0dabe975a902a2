"""Samples that a store does not give for a while: waited for, told, not called damaged, and the same in the end."""

import errno
import io
from pathlib import Path
from typing import Any

import pytest
import torch

from storage.datasets import DatasetManifest
from storage.errors import CorruptObjectError, ObjectMissingError, StoreError, StoreUnavailableError
from storage.first_weights import START_NAME
from storage.objects.digests import canonical_json, sha256_of_bytes
from storage.objects.local_store import LocalStore
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.failing_stores import FailingStore
from tests.helpers.training import make_spec
from training.data import waiting
from training.data.order import SampleOrder
from training.data.reading import SampleReader
from training.data.waiting import StoreWait, load_dataset_patiently
from training.models.first_weights import take_first_weights
from training.spec import StartPoint

ROWS = 600


class Clock:
    """A clock that moves when the module under test sleeps. Other threads of the process keep the real one."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(waiting, "time", made)
    return made


class Shard(io.RawIOBase):
    """A shard whose bytes the system cannot read for now."""

    def __init__(self, file: io.RawIOBase, number: int) -> None:
        self._file, self._number = file, number

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def readinto(self, _buffer: Any) -> int:
        raise OSError(self._number, "what the system says")


class StoreAway(LocalStore):
    """Gives no shard until the clock says so: it does not answer, or its files cannot be read."""

    def __init__(self, root: Path, clock: Clock, until: float, failure: int | None) -> None:
        super().__init__(root)
        self._clock, self._until, self._failure = clock, until, failure

    def open(self, key: str) -> io.RawIOBase:
        file = super().open(key)
        if self._clock.now >= self._until:
            return file
        if self._failure is None:
            raise StoreUnavailableError("Cannot reach the store.")
        return Shard(file, self._failure)


@pytest.fixture
def dataset(tmp_path: Path) -> DatasetManifest:
    return publish_small_dataset(LocalStore(tmp_path / "store"), tmp_path / "work", ROWS)


def read_first(store: LocalStore, dataset: DatasetManifest, folder: Path, wait: StoreWait | None) -> list[int]:
    order = SampleOrder(dataset.splits["train"].num_rows, dataset.row_group_rows, seed=4)
    rows: list[int] = SampleReader(store, dataset, "train", folder, wait=wait).read(order, 0, 50).rows.tolist()
    return rows


@pytest.mark.parametrize("failure", [None, errno.ESTALE, errno.ETIMEDOUT, errno.EIO, errno.EACCES])
def test_a_store_that_is_away_for_minutes_ends_no_rank_and_changes_no_sample(
    tmp_path: Path, dataset: DatasetManifest, clock: Clock, failure: int | None
) -> None:
    told: list[str] = []
    store = StoreAway(tmp_path / "store", clock, clock.now + 120, failure)
    found = read_first(store, dataset, tmp_path / "samples", StoreWait(600, report=told.append))
    assert found == read_first(LocalStore(tmp_path / "store"), dataset, tmp_path / "other", None)
    assert 120 <= clock.now <= 120 + waiting.BACKOFF.limit_seconds
    assert len(told) == 2 and "cannot be read just now: waiting up to 600 s" in told[0] and "read again" in told[1]


@pytest.mark.parametrize("failure", [None, errno.ESTALE])
def test_who_has_waited_long_enough_or_is_asked_to_stop_says_that_the_store_is_away(
    tmp_path: Path, dataset: DatasetManifest, clock: Clock, failure: int | None
) -> None:
    store = StoreAway(tmp_path / "store", clock, clock.now + 10_000, failure)
    with pytest.raises(StoreUnavailableError):
        read_first(store, dataset, tmp_path / "samples", StoreWait(600))
    assert 600 <= clock.now <= 601
    asked_at = clock.now + 30
    with pytest.raises(StoreUnavailableError):
        read_first(store, dataset, tmp_path / "samples", StoreWait(600, lambda: clock.now >= asked_at))
    assert asked_at <= clock.now <= asked_at + 1


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOENT])
@pytest.mark.parametrize("failures", [5, None])
def test_a_rank_that_starts_while_the_data_set_cannot_be_read_waits_as_long_as_one_that_trains(
    tmp_path: Path, dataset: DatasetManifest, clock: Clock, number: int, failures: int | None
) -> None:
    store, told = FailingStore(tmp_path / "store", number, failures, path="/datasets/"), list[str]()
    spec = make_spec(store, dataset, tmp_path / "segment")
    if failures is None:
        with pytest.raises(StoreUnavailableError, match=r"dataset\.json"):
            load_dataset_patiently(spec, store, StoreWait(600, report=told.append))
        assert 600 <= clock.now <= 601
    else:
        assert load_dataset_patiently(spec, store, StoreWait(600, report=told.append)) == dataset
        assert 0 < clock.now < 60 and "read again" in told[-1]
    assert "The files of the data set cannot be read just now: waiting up to 600 s" in told[0]


def test_a_run_that_begins_while_its_first_weights_cannot_be_read_waits_for_them(tmp_path: Path, clock: Clock) -> None:
    store = LocalStore(tmp_path / "store")
    plan: dict[str, Any] = {"files": {}, "copies": []}
    data = canonical_json(plan)
    store.write(f"runs/small/start/{START_NAME}", data)
    start = StartPoint(path="runs/small/start", digest=sha256_of_bytes(data))
    failing = FailingStore(tmp_path / "store", errno.EIO, 5, path="/runs/small/start/")
    with pytest.raises(StoreUnavailableError):
        take_first_weights(torch.nn.Linear(1, 1), failing, start)
    StoreWait(600).read("The run's first weights", lambda: take_first_weights(torch.nn.Linear(1, 1), failing, start))
    assert failing.failures == 0 and clock.now > 0


def test_what_cannot_pass_is_waited_for_by_nobody(tmp_path: Path, dataset: DatasetManifest, clock: Clock) -> None:
    denied = StoreAway(tmp_path / "store", clock, clock.now + 10_000, errno.EISDIR)
    with pytest.raises(StoreError) as caught:
        read_first(denied, dataset, tmp_path / "samples", StoreWait(600))
    assert not isinstance(caught.value, StoreUnavailableError | CorruptObjectError)
    for path in (tmp_path / "store").rglob("train-*.parquet"):
        path.write_bytes(path.read_bytes()[:-8] + b"nonsense")
    with pytest.raises(CorruptObjectError):
        read_first(LocalStore(tmp_path / "store"), dataset, tmp_path / "samples", StoreWait(600))
    for path in (tmp_path / "store").rglob("train-*.parquet"):
        path.unlink()
    with pytest.raises(ObjectMissingError):
        read_first(LocalStore(tmp_path / "store"), dataset, tmp_path / "other", StoreWait(600))
    assert clock.now == 0
