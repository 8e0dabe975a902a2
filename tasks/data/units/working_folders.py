"""Folders on local disk for files under way, one for each process.

Invariant: a folder is removed at the end of its block, or, if its process was killed, by who comes next; never while
its process lives.
"""

import contextlib
import fcntl
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from tasks.places import scratch_error


@contextlib.contextmanager
def working_folder(scratch: Path) -> Iterator[Path]:
    """A folder for files under way, removed at the end; those of killed processes are removed at the start.

    A lock beside the folder tells the living from the dead: the kernel releases it when its process ends.
    """
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        remove_abandoned(scratch)
        folder = scratch / f"prepare-{uuid.uuid4().hex}"
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


def remove_abandoned(scratch: Path) -> None:
    """Remove the folders of processes that have ended."""
    for folder in scratch.glob("prepare-*/"):
        with folder.with_suffix(".lock").open("a") as lock, contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            folder.with_suffix(".lock").unlink(missing_ok=True)
