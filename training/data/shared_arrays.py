"""Arrays that one of a machine's processes makes, and that all of them map: in folders on local disk.

Invariant: a folder of arrays is whole or not there, and is never changed; it may be removed at any time: who needs it
again makes it again.
"""

import fcntl
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import header_data_from_array_1_0, open_memmap, write_array_header_1_0
from numpy.typing import NDArray

from storage.errors import StoreError

Arrays = dict[str, NDArray[Any]]
# Of each array the pieces that, one after the other, are the whole.
Pieces = Mapping[str, Sequence[NDArray[Any]]]


def map_or_make(path: Path, names: Sequence[str], make: Callable[[], Pieces]) -> Arrays:
    """The arrays in the folder `path`, which are made if they are not there. Other processes wait for who makes them.

    Raises `StoreError` if they cannot be kept, and what `make` raises.
    """
    try:
        while (found := _find(path, names)) is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(path.with_name(f".{path.name}.lock")):
                if not path.is_dir():
                    _save(make(), path)
        return found
    except OSError as error:
        raise StoreError(
            f"Cannot keep decoded samples in {path.parent}: {error.strerror or error}. Check that the disk has "
            "space left, or set scratch to a folder on another disk."
        ) from error


def remove(path: Path) -> None:
    """For who maps it already it stays. Another process may have been quicker."""
    gone = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _save(arrays: Pieces, path: Path) -> None:
    part = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    part.mkdir()
    for name, pieces in arrays.items():
        header = header_data_from_array_1_0(pieces[0])
        header["shape"] = (sum(map(len, pieces)), *pieces[0].shape[1:])
        # Not through a map: a disk without space would end the process by SIGBUS instead of an error.
        with (part / f"{name}.npy").open("xb") as file:
            write_array_header_1_0(file, header)
            for piece in pieces:
                file.write(np.ascontiguousarray(piece).data)
    part.rename(path)


def _find(path: Path, names: Sequence[str]) -> Arrays | None:
    """The arrays there, mapped; None if they are not there, or are being removed."""
    try:
        mapped = {name: open_memmap(path / f"{name}.npy", mode="r") for name in names}
    except FileNotFoundError:
        return None
    # As plain arrays: each slice of NumPy's own kind for mapped files is several times as slow.
    return {name: array.view(np.ndarray) for name, array in mapped.items()}


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
