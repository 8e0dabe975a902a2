"""A control group with little memory, for processes that are to be killed by the kernel.

Invariant: it is gone at the end, and so is whatever still ran in it.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

MOUNTED = Path("/sys/fs/cgroup")
# By version, where the groups are that have memory, and what limits it.
LIMITS = ((MOUNTED, "memory.max"), (MOUNTED / "memory", "memory.limit_in_bytes"))
SECONDS = 10.0


@contextmanager
def group_with_memory(num_bytes: int) -> Iterator[Path]:
    """The file of the group to which a process writes its number to be in it. Skips where none can be made."""
    group = _make(num_bytes)
    try:
        yield group / "cgroup.procs"
    finally:
        _remove(group)


def _make(num_bytes: int) -> Path:
    for place, limit in LIMITS:
        group = place / f"holdfast-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / limit).exists():  # else this version has no memory here, or this is no control group at all
            (group / limit).write_text(str(num_bytes))
            return group
        group.rmdir()
    pytest.skip(
        "No control group with a limit to its memory can be made here: as root, where /sys/fs/cgroup is writable."
    )


def _remove(group: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), 9)
        try:
            group.rmdir()
        except OSError:  # busy until the last process is reaped
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)  # it does not signal that it is empty
        else:
            return
