"""Writing past the page cache: the same bytes whatever is aligned, also where a file system does not take them so."""

import ctypes
import errno
import fcntl
import io
import mmap
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.checkpoints.checkpoints import put_checkpoint_file
from storage.checkpoints.tensor_layout import TensorKind, lay_out
from storage.objects.direct_io import BLOCK_BYTES, write_directly
from storage.objects.local_store import LocalStore
from training.checkpointing.state_tensors import HostFile

MEBIBYTE = 2**20


def aligned_bytes(num_bytes: int) -> memoryview:
    """Random, and beginning where a page begins."""
    memory = mmap.mmap(-1, num_bytes + BLOCK_BYTES)
    memory.write(random.Random(num_bytes).randbytes(num_bytes))
    return memoryview(memory)


def count_cached_pages(path: Path) -> int:
    """How many of the file's pages are in the page cache, by mincore(2).

    A read that is not to wait (preadv2, `RWF_NOWAIT`) would not do: the kernel may begin to read ahead for it.
    """
    libc, num_bytes = ctypes.CDLL(None, use_errno=True), path.stat().st_size
    found = (ctypes.c_ubyte * -(-num_bytes // mmap.PAGESIZE))()
    with path.open("rb", buffering=0) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        view = np.frombuffer(pages, np.uint8)
        address = view.ctypes.data
        del view  # or the map could not be closed
        if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), found) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return sum(page & 1 for page in found)


def flags_of(file: io.FileIO) -> int:
    return fcntl.fcntl(file, fcntl.F_GETFL)


@pytest.mark.parametrize("num_bytes", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES + 5, MEBIBYTE + 1])
@pytest.mark.parametrize("offset", [0, 8, BLOCK_BYTES // 2], ids="memory+{}".format)
@pytest.mark.parametrize("position", [0, 3, BLOCK_BYTES], ids="file+{}".format)
def test_all_bytes_are_written_whatever_is_aligned(tmp_path: Path, num_bytes: int, offset: int, position: int) -> None:
    path = tmp_path / "file"
    data = aligned_bytes(num_bytes + offset)[offset : offset + num_bytes]
    with path.open("wb", buffering=0) as file:
        file.write(b"-" * position)
        flags = flags_of(file)
        write_directly(file, data)
        write_directly(file, data)
        assert flags_of(file) == flags
    assert path.read_bytes() == b"-" * position + bytes(data) * 2


def test_a_checkpoint_takes_no_room_in_the_page_cache(tmp_path: Path) -> None:
    store, copy = LocalStore(tmp_path / "store"), tmp_path / "copy"
    (layout,) = lay_out("model", {"weight": TensorKind("F32", (MEBIBYTE,))})
    data = HostFile(layout).data.numpy().data
    with copy.open("wb", buffering=0) as file:
        try:
            fcntl.fcntl(file, fcntl.F_SETFL, flags_of(file) | os.O_DIRECT)
        except OSError:
            pytest.skip("the file system of the temporary folder has no direct I/O")
    copy.write_bytes(data)
    put_checkpoint_file(store, "model.safetensors", data, tmp_path / "scratch")
    num_pages = -(-len(data) // mmap.PAGESIZE)
    assert count_cached_pages(copy) == num_pages > 1000
    # The last part of a block is all that direct I/O cannot take.
    assert count_cached_pages(store.fetch("model.safetensors")) <= 1


class RefusingFile(io.FileIO):
    """Of a file system that takes so many bytes by direct I/O, and then answers with an error."""

    def __init__(self, path: Path, taken: int, error: int) -> None:
        super().__init__(path, "w")
        self._taken, self._error = taken, error

    def write(self, data: Any) -> int:
        if not flags_of(self) & os.O_DIRECT:
            return super().write(data)
        if self._taken == 0:
            raise OSError(self._error, os.strerror(self._error))
        count = super().write(data[: self._taken])
        self._taken -= count
        return count


@pytest.mark.parametrize("taken", [0, BLOCK_BYTES])
@pytest.mark.parametrize("refusal", [errno.EINVAL, errno.EOPNOTSUPP, errno.EFAULT], ids=errno.errorcode.get)
def test_what_direct_io_does_not_take_goes_through_the_cache(tmp_path: Path, taken: int, refusal: int) -> None:
    data = aligned_bytes(MEBIBYTE)[:MEBIBYTE]
    with RefusingFile(tmp_path / "file", taken, refusal) as file:
        write_directly(file, data)
    assert (tmp_path / "file").read_bytes() == bytes(data)


def test_a_full_disk_is_no_reason_to_try_another_way(tmp_path: Path) -> None:
    data = aligned_bytes(MEBIBYTE)[:MEBIBYTE]
    with RefusingFile(tmp_path / "file", BLOCK_BYTES, errno.ENOSPC) as file, pytest.raises(OSError, match="No space"):
        write_directly(file, data)
    assert (tmp_path / "file").stat().st_size == BLOCK_BYTES
