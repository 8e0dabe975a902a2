"""Locked files by which the processes of a segment are found: one for each rank, and one for its agent.

Invariant: the kernel keeps a lock as long as its process lives, and no longer: a zombie holds none, and no file, name
or argument makes another process look like a rank. The lock is a record lock (fcntl(2)), which a process that is
forked or begun from its holder does not have.
"""

import errno
import fcntl
import os
import socket
import struct
import tempfile
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from storage.errors import ConfigurationError

AGENT_LOCK = "agent.lock"
RANK_LOCKS = "rank-*.lock"
# struct flock of Linux on 64-bit machines: type, whence, start, length, process.
FLOCK = "hhqqi4x"
# What a file system without record locks answers, such as Lustre without its option flock.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@dataclass(frozen=True)
class LockHolder:
    """A process that holds a lock on this machine; `rank` is None for an agent."""

    rank: int | None
    pid: int
    host: str


def rank_lock(folder: Path, rank: int) -> Path:
    """The file that a rank locks."""
    return folder / f"rank-{rank:04d}.lock"


def hold_lock(path: Path) -> FileIO:
    """Lock the file for this process, until that ends. The file is to be kept, and not opened a second time.

    Raises `BlockingIOError` if another process holds it.
    """
    file = path.open("r+b" if path.exists() else "w+b", buffering=0)
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file


def require_locks(folder: Path) -> None:
    """Lock a file in the folder for a moment.

    Raises `ConfigurationError` where none can be locked, and `OSError` where none can be written.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            raise ConfigurationError(
                f"Files in {folder} cannot be locked ({error.strerror}), and ranks are found by files that they lock. "
                "Set scratch to a folder on a disk of the machine; on Lustre, mounting it with the option flock helps."
            ) from error


def find_holders(folder: Path) -> list[LockHolder]:
    """The living ranks of a segment's folder by their numbers, and the agent last."""
    found = [_find_holder(path) for path in (*sorted(folder.glob(RANK_LOCKS)), folder / AGENT_LOCK)]
    return [holder for holder in found if holder is not None]


def _find_holder(path: Path) -> LockHolder | None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None  # not there, or put away right now
    try:
        asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    finally:
        os.close(descriptor)
    if kind == fcntl.F_UNLCK or pid <= 0:  # 0 is a process that cannot be seen from this one's container
        return None
    rank = None if path.name == AGENT_LOCK else int(path.stem.rpartition("-")[2])
    return LockHolder(rank, pid, socket.gethostname())
