"""Reading again what is kept, from where it is durable, and comparing it with what was promised when it was written.

A promise is a size and a hash that another record vouches for: the manifest for the index of a checkpoint and for the
start.json of a run, these for the files beside them, the index also for the newest part of the ledger, `state.json` for
the newest part of the history, each part for the one before, a data set's manifest for its shards.
Invariant: an object is called broken only after it was read twice, some time apart: what is wrong once and right the
second time is the fault of this machine's memory or network, or of a second without a disk, and no rot.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from storage.checkpoints.checkpoints import INDEX_NAME, STATE_NAME, load_checkpoint, read_checkpoint_file
from storage.checkpoints.history import newest_part_of
from storage.datasets import DatasetManifest, FileRecord, dataset_key
from storage.errors import CorruptObjectError, ObjectUnreadableError
from storage.first_weights import START_NAME, read_start
from storage.objects.history import HistoryPart, read_history_part
from storage.objects.readable import reading
from storage.objects.store import Store
from storage.runs.ledger import LedgerPart, fetch_ledger_part, read_ledger_header
from storage.runs.run_records import StartRecord
from storage.runs.run_state import CheckpointRecord

REREAD_SECONDS = 30.0
Part = TypeVar("Part", LedgerPart, HistoryPart)


@dataclass(frozen=True)
class Promise:
    """What the object with this key must be; its size in bytes is None where only the hash is vouched for."""

    key: str
    sha256: str
    num_bytes: int | None


@dataclass(frozen=True)
class BrokenPromise:
    """An object that is not what it must be: expected and found, in words.

    One that `is_unreadable` is missing, or its disk cannot read it just now: its bytes are unknown.
    """

    key: str
    expected: str
    found: str
    is_unreadable: bool = False

    @property
    def message(self) -> str:
        if self.is_unreadable:
            return self.found
        return f"{self.key} was changed after it was written: {self.expected} expected, {self.found} found."


class Rereader:
    """Reads the objects of one store. Counts what it read; memory is that of one chunk.

    `on_bytes` is called with the size of each chunk. With `max_bytes_per_second` it reads no faster than that, on
    average. What is wrong is read again after `reread_seconds`.
    """

    def __init__(
        self,
        store: Store,
        on_bytes: Callable[[int], None] | None = None,
        max_bytes_per_second: float | None = None,
        reread_seconds: float = REREAD_SECONDS,
    ) -> None:
        self.store = store
        self.reread_seconds = reread_seconds
        self.num_objects = 0
        self.num_bytes = 0
        self.num_misread = 0
        self._on_bytes = on_bytes
        self._max_bytes_per_second = max_bytes_per_second
        self._began = time.monotonic()
        self._sound: set[Promise] = set()  # which several checkpoints name

    def find_broken(self, promise: Promise) -> BrokenPromise | None:
        """Read the object; what is wrong with it, or None. Raises `StoreError` if the store cannot be read."""
        return next(iter(self._find_all([promise])), None)

    def find_broken_files(self, record: CheckpointRecord) -> list[BrokenPromise]:
        """What is wrong with a checkpoint's files. Raises `IncompatibleRunError` if its format is another version's."""
        index = Promise(f"{record.path}/{INDEX_NAME}", record.digest, None)
        broken = self.find_broken(index)
        if broken is not None:
            return [broken]  # nothing vouches for the others now
        try:
            files = load_checkpoint(self.store, record.path, record.digest).index.files
        except (CorruptObjectError, ObjectUnreadableError) as error:  # since a moment ago
            return [BrokenPromise(index.key, _describe(None, index.sha256), str(error), is_unreadable=True)]
        promises = [Promise(f"{record.path}/{name}", file.sha256, file.num_bytes) for name, file in files.items()]
        return self._find_all(promises)

    def find_broken_frozen(self, record: CheckpointRecord) -> list[BrokenPromise]:
        """What is wrong with the files that a checkpoint names beside its own; what was found sound is not read again.

        Nothing where its index cannot be read, which `find_broken_files` finds.
        """
        try:
            frozen = load_checkpoint(self.store, record.path, record.digest).index.frozen
        except (CorruptObjectError, ObjectUnreadableError):
            return []
        promises = [Promise(file.key, file.sha256, file.num_bytes) for file in frozen]
        broken = self._find_all([promise for promise in promises if promise not in self._sound])
        wrong = {found.key for found in broken}
        self._sound |= {promise for promise in promises if promise.key not in wrong}
        return broken

    def find_broken_shards(self, dataset: DatasetManifest) -> list[BrokenPromise]:
        """What is wrong with a data set's files."""
        return self._find_all(promises_of_dataset(dataset))

    def find_broken_start(self, start: StartRecord) -> list[BrokenPromise]:
        """What is wrong with a run's first weights."""
        plan = Promise(f"{start.path}/{START_NAME}", start.digest, None)
        broken = self.find_broken(plan)
        if broken is not None:
            return [broken]  # nothing vouches for the others now
        files: dict[str, str] = read_start(self.store, start.path, start.digest)["files"]
        return self._find_all([Promise(f"{start.path}/{name}", sha256, None) for name, sha256 in files.items()])

    def find_broken_part(self, newest: LedgerPart | None, known: set[str]) -> BrokenPromise | None:
        """Follow a ledger's chain down to the first part that is not what it must be; None if all are.

        Parts whose keys are in `known` were followed before; the others are added. What lies before a broken part is
        not looked at, since nothing else records what it must be.
        """
        return self._find_broken_link(newest, known, self._part_before, "a part of a ledger")

    def find_broken_history(self, newest: HistoryPart | None, known: set[str]) -> BrokenPromise | None:
        """As `find_broken_part`, for a chain of parts of the history."""
        return self._find_broken_link(
            newest, known, lambda part: read_history_part(self.store, part).previous, "a part of a run's history"
        )

    def _part_before(self, part: LedgerPart) -> LedgerPart | None:
        return read_ledger_header(fetch_ledger_part(self.store, part)).previous

    def _find_broken_link(
        self, newest: Part | None, known: set[str], find_previous: Callable[[Part], Part | None], what: str
    ) -> BrokenPromise | None:
        part = newest
        while part is not None and part.key not in known:
            known.add(part.key)
            broken = self.find_broken(Promise(part.key, part.sha256, part.num_bytes))
            if broken is not None:
                return broken
            try:
                previous = find_previous(part)
            except (CorruptObjectError, ObjectUnreadableError) as error:
                return BrokenPromise(part.key, what, str(error))
            part = previous
        return None

    def _find_all(self, promises: list[Promise]) -> list[BrokenPromise]:
        """What is wrong with these at both of two looks; one pause for all of them."""
        self.num_objects += len(promises)
        suspects = [promise for promise in promises if self._compare(promise) is not None]
        if not suspects:
            return []
        time.sleep(self.reread_seconds)  # what a second of trouble with a disk or a network has done is over by then
        broken = [found for found in map(self._compare, suspects) if found is not None]
        self.num_misread += len(suspects) - len(broken)
        return broken

    def _compare(self, promise: Promise) -> BrokenPromise | None:
        expected = _describe(promise.num_bytes, promise.sha256)
        digest, num_bytes = hashlib.sha256(), 0
        try:
            with reading(self.store, promise.key):
                for chunk in self._read(promise.key):
                    digest.update(chunk)
                    num_bytes += len(chunk)
        except ObjectUnreadableError as error:
            return BrokenPromise(promise.key, expected, str(error), is_unreadable=True)
        except CorruptObjectError as error:
            return BrokenPromise(promise.key, expected, str(error))
        if digest.hexdigest() == promise.sha256 and promise.num_bytes in (num_bytes, None):
            return None
        return BrokenPromise(promise.key, expected, _describe(num_bytes, digest.hexdigest()))

    def _read(self, key: str) -> Iterator[bytes]:
        for chunk in self.store.read_chunks(key):
            self.num_bytes += len(chunk)
            if self._on_bytes is not None:
                self._on_bytes(len(chunk))
            self._hold_back()
            yield chunk

    def _hold_back(self) -> None:
        if self._max_bytes_per_second is not None:
            due = self._began + self.num_bytes / self._max_bytes_per_second
            time.sleep(max(0.0, due - time.monotonic()))  # the user asked to be slower than the disk


def promises_of_dataset(dataset: DatasetManifest) -> list[Promise]:
    """What the shards of all splits, the tokenizer and the contract's result must be."""
    files: list[FileRecord] = [shard for split in dataset.splits.values() for shard in split.shards]
    files += [file for file in (dataset.tokenizer, dataset.contract) if file is not None]
    return [Promise(dataset_key(dataset.digest, file.name), file.sha256, file.num_bytes) for file in files]


def find_newest_part(store: Store, record: CheckpointRecord) -> LedgerPart | None:
    """The newest part of the ledger that a checkpoint vouches for.

    Raises `CorruptObjectError` and `ObjectUnreadableError` without its index.
    """
    return load_checkpoint(store, record.path, record.digest).index.ledger


def find_newest_history(store: Store, record: CheckpointRecord) -> HistoryPart | None:
    """The newest part of the history that a checkpoint vouches for.

    Raises `CorruptObjectError` and `ObjectUnreadableError` without its index or its state.
    """
    found = load_checkpoint(store, record.path, record.digest)
    return newest_part_of(json.loads(read_checkpoint_file(store, found, STATE_NAME)))


def _describe(num_bytes: int | None, sha256: str) -> str:
    size = "" if num_bytes is None else f"{num_bytes:,} bytes with "
    return f"{size}SHA-256 {sha256[:16]}..."
