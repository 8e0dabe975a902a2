"""Arrays that one process of a machine makes and that all of them map: in files on local disk, one for each set.

Invariant: a set is whole or not there, and is never changed; it may be removed at any time: who needs it again makes it
again.
"""

import fcntl
import json
import math
import mmap
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.errors import StoreError

Arrays = dict[str, NDArray[Any]]
# Of each array the chunks that, one after the other, are the whole.
ArrayChunks = Mapping[str, Sequence[NDArray[Any]]]
Waiting = Callable[[], AbstractContextManager[None]]

# The set that is read, the next one, and the one before, which a process that is slower may still need.
KEPT_SETS = 3

LENGTH_BYTES = 8
ALIGNMENT = 64


class SharedArrays:
    """Sets of arrays that are read one after the other: the files of `folder` whose names begin with `name`.

    The last `num_kept` that were got are there; older ones are removed. A wait for another process is within `waiting`.
    """

    def __init__(self, folder: Path, name: str, num_kept: int = KEPT_SETS, waiting: Waiting = nullcontext) -> None:
        self._folder = folder
        self._name = name
        self._num_kept = num_kept
        self._waiting = waiting
        self._mapped: OrderedDict[str, Arrays] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._mapped

    def get(self, key: str, make: Callable[[], ArrayChunks]) -> Arrays:
        """The set `key`, as `map_or_make` gives it."""
        found = self._mapped.get(key)
        if found is None:
            found = self._mapped[key] = self.map_or_make(key, make)
            if len(self._mapped) > self._num_kept:
                oldest, _ = self._mapped.popitem(last=False)
                # For who maps it already it stays. Another process may have been quicker.
                self._path(oldest).unlink(missing_ok=True)
        return found

    def map_or_make(self, key: str, make: Callable[[], ArrayChunks]) -> Arrays:
        """The set `key`, which is made if it is not there. Processes wait for the one that makes a set of this name.

        Raises `StoreError` if it cannot be kept, and what `make` raises.
        """
        path = self._path(key)
        with self._explained():
            while (found := _map(path)) is None:
                with self._locked():
                    if not path.exists():
                        _save(make(), path)
            return found

    def find(self, key: str) -> Arrays | None:
        """The set `key` if it is there, or is being made. Raises `StoreError`."""
        path = self._path(key)
        with self._explained():
            found = _map(path)
            if found is None:
                with self._locked():
                    found = _map(path)
            return found

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f".{self._name}.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with self._waiting():
                    fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"Cannot keep decoded samples in {self._folder}: {error.strerror or error}. Check that the disk has "
                "space left, or set scratch to a folder on another disk."
            ) from error

    def _path(self, key: str) -> Path:
        return self._folder / f"{self._name}-{key}"


def _map(path: Path) -> Arrays | None:
    """The arrays of a file, not to be written to; None if it is not there."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        return None
    # One file for all, since opening one for each array would take as long as what a rank does with them.
    start = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
    index = json.loads(data[LENGTH_BYTES:start])
    return {name: np.ndarray(shape, kind, data, _aligned(start) + at) for name, (kind, shape, at) in index.items()}


def _save(arrays: ArrayChunks, path: Path) -> None:
    """Write a file of arrays: its index, led by the index's length, and what they hold, each at its offset."""
    index, offsets, end = {}, [], 0
    for name, chunks in arrays.items():
        shape = (sum(map(len, chunks)), *chunks[0].shape[1:])
        index[name] = (chunks[0].dtype.str, shape, end)
        offsets.append(end)
        end = _aligned(end + math.prod(shape) * chunks[0].itemsize)
    header = json.dumps(index).encode()
    start = _aligned(LENGTH_BYTES + len(header))
    part = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    # Not through a map: a disk without space would end the process by SIGBUS instead of an error.
    with part.open("xb") as file:
        file.write(len(header).to_bytes(LENGTH_BYTES, "little") + header)
        for offset, chunks in zip(offsets, arrays.values(), strict=True):
            file.seek(start + offset)
            for chunk in chunks:
                file.write(np.ascontiguousarray(chunk).data)
        file.truncate(start + end)
    part.rename(path)


def _aligned(offset: int) -> int:
    """The first offset from there on where an array may begin."""
    return -(-offset // ALIGNMENT) * ALIGNMENT
