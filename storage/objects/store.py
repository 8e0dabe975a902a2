"""The one protocol for durable storage: immutable objects under keys, put-if-absent as the only lock.

Every implementation passes `tests/integration/test_store_behaviour.py`. Keys are relative, with `/` between parts.
A method that writes returns when its bytes survive a power cut.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from storage.errors import ObjectExistsError


class Store(Protocol):
    """A folder or a bucket prefix. `address` is what a user types to name it."""

    def __hash__(self) -> int:
        """Hash of the opened store, not of its address."""

    @property
    def address(self) -> str:
        """What `open_store` takes to open this store again, in any process."""

    def read(self, key: str) -> bytes:
        """The object's bytes. Raises `ObjectMissingError`."""

    def write(self, key: str, data: bytes) -> None:
        """Put or replace an object whole: a reader sees the old bytes or the new ones."""

    def write_if_absent(self, key: str, data: bytes) -> None:
        """Put an object; raises `ObjectExistsError` if there is one. Of racing writers exactly one succeeds."""

    def put_file(self, source: Path, key: str) -> None:
        """Put a finished local file, which is not written any more. Raises `ObjectExistsError`."""

    def replace_file(self, source: Path, key: str) -> None:
        """Put a finished local file in place of an object: a reader sees the old bytes or the new ones, never none."""

    def fetch(self, key: str, is_checked: bool = False) -> Path:
        """A local path with the object's content, to be read only. Raises `ObjectMissingError`.

        `is_checked`: the caller compares the bytes with a known hash, so an earlier copy will do.
        """

    def open(self, key: str) -> io.RawIOBase:
        """The object as a binary file, to be read here and there: of a bucket no byte is fetched that is not read.

        For who needs little of a large object. All bytes are of the version that is there now; that of a data set's
        file may be asked after once for each opened store. Raises `ObjectMissingError`. Reading raises that too if the
        object is gone, `StoreError` if it was replaced or cannot be reached, and what the system raises for a file.
        """

    def read_chunks(self, key: str) -> Iterator[bytes]:
        """The object's bytes as the durable storage has them now, in order, a few MiB at a time.

        Copies on this machine are not asked, so it is for who looks for rot; who reads to work uses `fetch`. Raises
        `ObjectMissingError`, and `CorruptObjectError` where a server reports that the bytes are not what was put.
        """

    @property
    def page_keys(self) -> int | None:
        """How many keys a bucket lists for a request; None where a whole listing costs no more than a part of it."""

    def list_keys(self, prefix: str, after: str = "", most: int | None = None) -> Iterator[str]:
        """Keys that start with `prefix`, in byte order. Objects only, never files under way.

        Those behind the key `after`, which need not be there; the first `most` of them: who needs few of many says so.
        """

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is no error."""

    def sweep(self) -> None:
        """Remove what writers that were killed more than a day ago left behind. It was never visible."""


def put_file_anew(store: Store, source: Path, key: str) -> None:
    """Put a file of which a save or attempt that was cut off may have left one.

    Where one is, it is replaced, and at no moment missing: who puts it late, such as a node that others went on
    without, may be killed at any moment, and the others may have completed the checkpoint with the same bytes.
    """
    try:
        store.put_file(source, key)
    except ObjectExistsError:
        store.replace_file(source, key)
