"""Where the results of units are kept until the data set is published: a record each, and the files beside it.

Invariant: files first, then the record, which is sealed and has the hash of nothing that is not there: a unit with a
record is done, by whichever process, on whatever machine. One that was killed left at most files that nothing names.
"""

import json
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from storage.errors import ObjectExistsError, ObjectMissingError
from storage.objects.digests import is_sealed, seal, sha256_of_file
from storage.objects.store import Store

STAGING_FOLDER = "preparations"
SEAL_FIELD = "seal"
BEGUN = "begun"
ABANDONED_SECONDS = 14 * 86_400.0
REMOVING_THREADS = 4
Record = dict[str, Any]


class StagingArea(Protocol):
    """Records by name, and files."""

    def __hash__(self) -> int: ...

    def find(self, name: str) -> Record | None:
        """The record, or None."""

    def keep(self, name: str, record: Record, files: Mapping[str, Path]) -> None:
        """Keep finished files under these names, and then the record."""

    def fetch(self, name: str) -> Path:
        """A file that was kept, on this machine, to be read only."""

    def read_range(self, name: str, start: int, end: int) -> bytes:
        """The bytes [start, end) of a file that was kept."""

    def address_of(self, name: str) -> str:
        """Where a person finds it."""


class FolderStaging:
    """On this machine, for as long as one preparation: where little is to be done, nothing is kept for the next one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._records: dict[str, Record] = {}
        folder.mkdir()

    def find(self, name: str) -> Record | None:
        return self._records.get(name)

    def keep(self, name: str, record: Record, files: Mapping[str, Path]) -> None:
        for file_name, path in files.items():
            shutil.move(path, self._folder / file_name)
        self._records[name] = record

    def fetch(self, name: str) -> Path:
        return self._folder / name

    def read_range(self, name: str, start: int, end: int) -> bytes:
        with self.fetch(name).open("rb") as file:
            file.seek(start)
            return file.read(end - start)

    def address_of(self, name: str) -> str:
        return str(self._folder / name)


class StoreStaging:
    """In the store, under a key of its own."""

    def __init__(self, store: Store, key: str) -> None:
        self.store = store
        self.key = key

    def find(self, name: str) -> Record | None:
        try:
            found = self.store.read(self._key_of(f"{name}.json"))
        except ObjectMissingError:
            return None
        # A damaged one counts as none: the unit is done again.
        if not is_sealed(found, SEAL_FIELD):
            return None
        record: Record = json.loads(found)
        del record[SEAL_FIELD]
        return record

    def keep(self, name: str, record: Record, files: Mapping[str, Path]) -> None:
        for file_name, path in files.items():
            put_again(self.store, path, self._key_of(file_name))
            path.unlink()
        self.store.write(self._key_of(f"{name}.json"), seal(record, SEAL_FIELD))

    def fetch(self, name: str) -> Path:
        return self.store.fetch(self._key_of(name))

    def read_range(self, name: str, start: int, end: int) -> bytes:
        with self.store.open(self._key_of(name)) as file:
            file.seek(start)
            return bytes(file.read(end - start) or b"")

    def address_of(self, name: str) -> str:
        return f"{self.store.address}/{self._key_of(name)}"

    def _key_of(self, name: str) -> str:
        return f"{STAGING_FOLDER}/{self.key}/{name}"


def load_record(staging: StagingArea, name: str) -> Record:
    """A record that was kept. Raises `ObjectMissingError` if it is not there any more."""
    found = staging.find(name)
    if found is None:
        raise ObjectMissingError(
            f"{staging.address_of(f'{name}.json')} is missing: it was removed or damaged meanwhile."
        )
    return found


def begin_staging(staging: StoreStaging, now: float) -> None:
    """Note when a preparation was last begun or continued, and remove what others kept and left long ago."""
    for key in list(staging.store.list_keys(f"{STAGING_FOLDER}/")):
        _, other, name = key.split("/", 2)
        if name == f"{BEGUN}.json" and other != staging.key:
            begun = StoreStaging(staging.store, other).find(BEGUN)
            if begun is None or begun["unix_time"] < now - ABANDONED_SECONDS:
                remove_staging(staging.store, other)
    staging.keep(BEGUN, {"unix_time": now}, {})


def remove_staging(store: Store, key: str) -> None:
    """Remove what a preparation kept, several files at a time: a disk takes a while for each large one."""
    begun = f"{STAGING_FOLDER}/{key}/{BEGUN}.json"
    with ThreadPoolExecutor(REMOVING_THREADS, thread_name_prefix="remove") as pool:
        list(pool.map(store.delete, [name for name in store.list_keys(f"{STAGING_FOLDER}/{key}/") if name != begun]))
    store.delete(begun)  # the last: what a kill leaves here is found by it, and removed in the end


def put_again(store: Store, path: Path, key: str) -> None:
    """Put a file where an interrupted preparation may have left one: an equal one stays, any other is replaced.

    Nothing is deleted that is right, so two preparations of the same data set at the same time do not disturb each
    other: the key has the hash of the content in it, or that of all that decides it.
    """
    try:
        store.put_file(path, key)
    except ObjectExistsError:
        if sha256_of_file(store.fetch(key)) != sha256_of_file(path):
            store.delete(key)
            store.put_file(path, key)
