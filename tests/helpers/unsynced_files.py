"""What a process has written and not yet synced to disk: what a power cut may take.

The file system of a test machine keeps everything, so a missing fsync never shows. Here what may be lost is lost.
Invariant: a file's bytes are safe after an fsync of the file, its name after an fsync of its folder, and nothing else
is. A name that was removed or replaced stays so: POSIX would allow it to come back, which nobody here relies on.
"""

import os
import shutil
import threading
from contextlib import suppress

Inode = tuple[int, int]
# Before anything is wrapped.
REAL_UNLINK = os.unlink


class UnsyncedFiles:
    """Bytes by their file, whatever its names, and names in the order in which they were made."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._synced: set[Inode] = set()
        self._unsafe_bytes: dict[Inode, str] = {}
        self._unsafe_names: dict[str, None] = {}

    def written(self, path: str) -> None:
        """The file's bytes changed."""
        inode = _inode(path)
        if inode is not None:
            with self._lock:
                self._synced.discard(inode)
                self._unsafe_bytes[inode] = path

    def named(self, path: str) -> None:
        """A file or folder got this name. Bytes that this process never synced are not safe, whoever wrote them."""
        inode = _inode(path)
        with self._lock:
            self._unsafe_names[path] = None
            if inode is not None and inode not in self._synced and os.path.isfile(path):  # noqa: PTH113
                self._unsafe_bytes[inode] = path

    def synced(self, path: str) -> None:
        """The file's bytes, or the folder's names, are safe."""
        inode = _inode(path)
        with self._lock:
            if inode is not None:
                self._synced.add(inode)
                self._unsafe_bytes.pop(inode, None)
            safe = [name for name in self._unsafe_names if os.path.dirname(name) == path]  # noqa: PTH120
            for name in safe:
                del self._unsafe_names[name]

    def has_names_in(self, folder: str) -> bool:
        """Whether a power cut could take names from this folder."""
        with self._lock:
            return any(os.path.dirname(name) == folder for name in self._unsafe_names)  # noqa: PTH120

    def lose(self) -> None:
        """What a power cut does: unsafe bytes are cut in half, unsafe names are gone."""
        with self._lock:
            for path in self._unsafe_bytes.values():
                with suppress(OSError):
                    os.truncate(path, os.path.getsize(path) // 2)  # noqa: PTH202
            for name in self._unsafe_names:
                with suppress(OSError):
                    _remove(name)


def _remove(name: str) -> None:
    if os.path.isdir(name):  # noqa: PTH112
        shutil.rmtree(name, ignore_errors=True)
    else:
        REAL_UNLINK(name)


def _inode(path: str) -> Inode | None:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino
