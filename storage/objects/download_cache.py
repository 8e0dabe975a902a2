"""Copies of a bucket's objects on local disk, shared by all processes of one user on one machine.

A store in a bucket has to put what it fetches whole somewhere, and all ranks of a machine read the same checkpoint: one
of them downloads, the others wait for it. The folder is bounded: beside what others keep on its disk, copies take at
most half of what is free, and the ones used longest ago leave first. A copy used within the last ten minutes stays in
any case: another process may have its path and not have opened it yet. Looking at all copies takes time: a process that
found room adds copies to a small part of it before it looks again. Invariant: a name stands for one content and for a
whole file, also after a power cut; everything here may be deleted at any time.
"""

import fcntl
import hashlib
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

from storage.errors import StoreError
from storage.objects.private_folder import make_private_folder

SHARE_OF_FREE_DISK = 0.5
# Of the room that a look found: so much a process adds before it looks again. The others of its machine do the same.
SHARE_OF_ROOM = 1 / 64
# Others may have filled the disk meanwhile.
SECONDS_BETWEEN_LOOKS = 60.0
IN_USE_SECONDS = 600
NUM_LOCKS = 64
LOCK_PREFIX = "lock-"
# Held by who marks a copy as used, and alone by who looks at the mark and removes the copy.
REMOVAL_LOCK = f"{LOCK_PREFIX}removal"
PART_SUFFIX = ".part"


class DownloadCache:
    """Copies in `folder`, which is made when it is first used. `limit_bytes` stands in for the share of the disk."""

    def __init__(self, folder: Path, limit_bytes: int | None = None) -> None:
        self.folder = folder
        self._limit_bytes = limit_bytes
        self._may_add, self._look_at = 0.0, 0.0  # bytes without another look, and until when

    def find(self, name: str, num_bytes: int) -> Path | None:
        """The copy with this name, or None. To be opened within ten minutes."""
        path = self.folder / name
        try:
            with self._lock(REMOVAL_LOCK, fcntl.LOCK_SH):
                os.utime(path)  # from now on no process removes it
                return path if path.stat().st_size == num_bytes else None
        except OSError:
            return None  # whatever is wrong with the folder is raised when a copy is to be kept in it

    def get(self, name: str, num_bytes: int, download: Callable[[BinaryIO], None], anew: bool = False) -> Path:
        """The copy with this name, downloaded if there is none, or in any case if `anew`. Raises `StoreError`."""
        try:
            self._make_folder()
            with self._locked(name):
                found = None if anew else self.find(name, num_bytes)
                return found or self._add(name, num_bytes, download)
        except OSError as error:
            raise StoreError(
                f"Cannot keep downloads in {self.folder}: {error.strerror or error}. "
                "Check that the folder is writable and has space left, or set TMPDIR to another disk."
            ) from error

    def _add(self, name: str, num_bytes: int, download: Callable[[BinaryIO], None]) -> Path:
        if num_bytes > self._may_add or time.monotonic() >= self._look_at:
            room = self._make_room(num_bytes)
            self._may_add = SHARE_OF_ROOM * max(0.0, room) + num_bytes
            self._look_at = time.monotonic() + SECONDS_BETWEEN_LOOKS
        self._may_add -= num_bytes
        path = self.folder / name
        part = self.folder / f"{uuid.uuid4().hex}{PART_SUFFIX}"
        try:
            with part.open("wb") as file:
                download(file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return path

    def _make_folder(self) -> None:
        """In a folder that all users may write, the name may be taken by one who wants to choose our bytes."""
        make_private_folder(self.folder, "scratch, or TMPDIR,")

    def _locked(self, name: str) -> AbstractContextManager[None]:
        """One process at a time for each name. The system lets go of the lock of one that dies."""
        number = int(hashlib.sha256(name.encode()).hexdigest(), 16) % NUM_LOCKS
        return self._lock(f"{LOCK_PREFIX}{number:02d}", fcntl.LOCK_EX)

    @contextmanager
    def _lock(self, name: str, kind: int) -> Iterator[None]:
        with (self.folder / name).open("ab") as file:
            fcntl.flock(file, kind)
            yield

    def _make_room(self, num_bytes: int) -> float:
        """Remove the copies used longest ago until so many bytes more are within the limit; what is left of it."""
        copies = sorted(self._copies())
        total = sum(size for _, size, _ in copies)
        limit = self._limit(total)
        for used_at, size, path in copies:
            if total + num_bytes <= limit or used_at > time.time() - IN_USE_SECONDS:
                break
            if self._remove_unless_used(path):
                total -= size
        return limit - total - num_bytes

    def _remove_unless_used(self, path: Path) -> bool:
        """Remove a copy unless it was asked for since the copies were listed; whether it is gone."""
        with self._lock(REMOVAL_LOCK, fcntl.LOCK_EX):
            try:
                if path.stat().st_mtime > time.time() - IN_USE_SECONDS:
                    return False
                path.unlink()
            except FileNotFoundError:
                pass  # another process was quicker
            return True

    def _limit(self, total: int) -> float:
        if self._limit_bytes is not None:
            return self._limit_bytes
        disk = os.statvfs(self.folder)
        return SHARE_OF_FREE_DISK * (disk.f_bavail * disk.f_frsize + total)

    def _copies(self) -> Iterator[tuple[float, int, Path]]:
        """When it was last used, size and path of each copy, and of what killed downloads left behind."""
        for path in self.folder.iterdir():
            try:
                found = path.stat()
            except FileNotFoundError:
                continue  # another process was quicker
            if not path.name.startswith(LOCK_PREFIX):
                yield found.st_mtime, found.st_size, path


def default_cache_folder() -> Path:
    """Below the system's folder for temporary files, which TMPDIR names; one for each user."""
    return Path(tempfile.gettempdir()) / f"holdfast-cache-{os.getuid()}"
