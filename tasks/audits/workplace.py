"""Where an audit works: a database that spills into a folder of its own, in scratch or where temporary files go.

Invariant: the folder is removed at the end of its block or, if its process was killed, by the next audit; never while
its process lives.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import duckdb

from tasks.data.database import explained_errors, open_database
from tasks.run_paths import scratch_error

PREFIX = "holdfast-audit-"


@contextlib.contextmanager
def workplace(memory_limit: str, scratch: Path | None) -> Iterator[tuple[duckdb.DuckDBPyConnection, Path]]:
    """A database that spills into a folder, and that folder: as `working_folder`."""
    with (
        working_folder(scratch) as folder,
        explained_errors(memory_limit, folder),
        open_database(memory_limit, folder) as connection,
    ):
        yield connection, folder


@contextlib.contextmanager
def working_folder(scratch: Path | None = None) -> Iterator[Path]:
    """A folder, removed at the end; those of killed processes are removed at the start.

    It is in `scratch`, or where temporary files go (set TMPDIR to change that): there memory may be all the room. Its
    process holds a lock on it, which the kernel releases when the process ends. Raises `StoreError` if it cannot
    be written to.
    """
    parent = Path(tempfile.gettempdir()) if scratch is None else scratch
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for abandoned in parent.glob(f"{PREFIX}*"):
            _remove_abandoned(abandoned)
        folder, lock = _make_locked(parent)
    except OSError as error:
        raise scratch_error(parent, error, "TMPDIR" if scratch is None else "scratch") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _make_locked(parent: Path) -> tuple[Path, int]:
    """A new folder, and the open file of the lock on it."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        with contextlib.suppress(FileNotFoundError):  # before it is locked another audit may take it for abandoned
            lock = _open(folder)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.is_dir():
                return folder, lock
            os.close(lock)


def _remove_abandoned(folder: Path) -> None:
    """Remove it unless a process holds its lock, or it is not this user's to remove."""
    with contextlib.suppress(OSError):
        lock = _open(folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
