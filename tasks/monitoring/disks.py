"""Whether the file systems that a segment writes to are about to be full.

Invariant: a look never stops nor fails a segment, and each file system is reported once in a segment. What ranks have
on other machines is not seen from here.
"""

import shutil
import time
from contextlib import suppress
from pathlib import Path

from storage.objects.addresses import run_address
from storage.objects.local_store import LocalStore
from tasks.prefect_bridge.alerts import LOW_DISK, alert
from tasks.run_paths import RunPaths
from tasks.text import share, size

SECONDS_BETWEEN_LOOKS = 60.0
# Little space is less than this share of the file system, or less than two checkpoints take: one may be half written.
LOWEST_FREE_SHARE = 0.05
CHECKPOINTS_THAT_MUST_FIT = 2


class DiskWatch:
    """The watch of one segment: after reports of ranks `look_now_and_then` is called, after a promotion `look`."""

    def __init__(self, run_paths: RunPaths) -> None:
        self._address = run_address(run_paths.store, run_paths.manifest.run)
        self._run = run_paths.manifest.run
        self._folders = {"scratch": run_paths.scratch}
        if isinstance(run_paths.store, LocalStore):
            self._folders = {"the store": run_paths.store.root, **self._folders}
        self._checkpoint_bytes = 0
        self._reported: set[int] = set()
        self._next_look = 0.0

    def look(self, checkpoint_bytes: int | None = None) -> None:
        """Alert of each file system with little space that was not reported yet. A checkpoint takes so many bytes."""
        self._next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS
        self._checkpoint_bytes = checkpoint_bytes or self._checkpoint_bytes
        for name, folder in self._folders.items():
            with suppress(OSError):  # what cannot be looked at fails, and is explained, where it is used
                self._look_at(name, folder)

    def look_now_and_then(self) -> None:
        """`look`, at most once a minute."""
        if time.monotonic() >= self._next_look:
            self.look()

    def _look_at(self, name: str, folder: Path) -> None:
        # Scratch is made when the first segment begins.
        folder = next(path for path in (folder, *folder.parents) if path.exists())
        usage, device = shutil.disk_usage(folder), folder.stat().st_dev
        lowest = max(LOWEST_FREE_SHARE * usage.total, CHECKPOINTS_THAT_MUST_FIT * self._checkpoint_bytes)
        # Some file systems, of a network or an object store, do not report how large they are.
        if usage.total == 0 or usage.free >= lowest or device in self._reported:
            return
        self._reported.add(device)
        message = f"{self._describe(name, folder, usage.free, usage.total)} {self._advise(name)}"
        alert(LOW_DISK, self._address, message, run=self._run, folder=str(folder), free_bytes=usage.free)

    def _describe(self, name: str, folder: Path, free: int, total: int) -> str:
        checkpoint = f" A checkpoint takes {size(self._checkpoint_bytes)}." if self._checkpoint_bytes else ""
        return (
            f"Little space is left where {name} is, {folder}: {size(free)} of {size(total)}, {share(free / total)}."
            f"{checkpoint} When it is full, no checkpoint can be saved there, and a segment whose scratch is there "
            "ends with an error. Each interruption then costs all steps since the last checkpoint."
        )

    def _advise(self, name: str) -> str:
        advice = "Delete there what is not needed, or make the file system larger."
        if name != "the store":
            return f"{advice} Or set `scratch` to another folder: it may change between segments."
        return f"{advice} What the run no longer keeps goes with `holdfast prune {self._address}`."
