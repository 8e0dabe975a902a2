"""Folders on local disk: for files under way one for each process, and for what a preparation needs again.

Invariant: a folder for files under way is removed at the end of its block, or, if its process was killed, by who comes
next; never while its process lives. What a preparation needs again stays as long as its units do in the store.
"""

import contextlib
import fcntl
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from tasks.data.units.staging import ABANDONED_SECONDS
from tasks.run_paths import scratch_error

_UNDER_WAY, _NEEDED_AGAIN = "prepare-", "brought-"


@contextlib.contextmanager
def working_folder(scratch: Path) -> Iterator[Path]:
    """A folder for files under way, removed at the end; those of killed processes are removed at the start.

    A lock beside the folder shows whether its process lives: the kernel releases it when its process ends.
    """
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        remove_abandoned(scratch)
        folder = scratch / f"{_UNDER_WAY}{uuid.uuid4().hex}"
        lock = folder.with_suffix(".lock").open("w")
    except OSError as error:
        raise scratch_error(scratch, error) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            folder.with_suffix(".lock").unlink(missing_ok=True)


def folder_needed_again(scratch: Path, staging: str) -> Path:
    """Where rows that were brought from a bucket, and those whose tokens are decoded, are on this machine."""
    return scratch / f"{_NEEDED_AGAIN}{staging[:16]}"


def remove_abandoned(scratch: Path) -> None:
    """Remove the folders of processes that have ended, and those of preparations that were not continued."""
    oldest = time.time() - ABANDONED_SECONDS
    for folder in scratch.glob(f"{_NEEDED_AGAIN}*/"):
        with contextlib.suppress(FileNotFoundError):
            if folder.stat().st_mtime < oldest:  # each file that comes or goes changes it
                shutil.rmtree(folder, ignore_errors=True)
    for folder in scratch.glob(f"{_UNDER_WAY}*/"):
        with folder.with_suffix(".lock").open("a") as lock, contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            folder.with_suffix(".lock").unlink(missing_ok=True)
