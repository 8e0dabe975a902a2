"""Writing large files past the page cache: by direct I/O (open(2), `O_DIRECT`), where it is to be had.

What goes through the cache costs memory that is taken from the data set's shards, and the kernel copies and writes it
out on the cores on which training computes. Direct I/O moves the bytes from where they are straight to the device; it
wants whole blocks in address, position and length, and some file systems do not have it: what it does not take goes
through the cache. Neither makes bytes durable: that is `fsync`.
"""

import errno
import fcntl
import io
import os

import numpy as np

# The largest block that devices and file systems in use ask for; a memory page, too.
BLOCK_BYTES = 4096
# Errors that mean that it is not supported, that larger blocks are asked for, or that a device cannot get at the
# memory.
REFUSALS = (errno.EINVAL, errno.EOPNOTSUPP, errno.EFAULT)


def write_directly(file: io.FileIO, data: memoryview) -> None:
    """Write all of `data` [bytes] at the position of a file that has no buffer of its own. Raises `OSError`."""
    start = file.tell()
    if start % BLOCK_BYTES == 0 and _address_of(data) % BLOCK_BYTES == 0:
        _write_whole_blocks(file, data[: len(data) // BLOCK_BYTES * BLOCK_BYTES])
    _write_all(file, data[file.tell() - start :])


def _write_whole_blocks(file: io.FileIO, data: memoryview) -> None:
    """Write `data` by direct I/O, or as much of it as the file system takes."""
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_DIRECT)
        _write_all(file, data)
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
    finally:
        fcntl.fcntl(file, fcntl.F_SETFL, flags)


def _write_all(file: io.FileIO, data: memoryview) -> None:
    while data:
        data = data[file.write(data) :]


def _address_of(data: memoryview) -> int:
    return int(np.frombuffer(data, np.uint8).ctypes.data)
