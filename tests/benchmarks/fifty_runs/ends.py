"""What ends the processes of a benchmark, and removes its folder, also where the benchmark itself was killed.

Invariant: a process is known by the folder in its environment, which all that it starts or forks has, too. Little is
imported: it is called by a process that begins when all is to end.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

FOLDER_VARIABLE = "HOLDFAST_BENCH_FOLDER"
REMOVE_SECONDS = 30.0
POLL_SECONDS = 1.0


def end_processes(folder: str) -> None:
    """SIGKILL for all processes that have this folder in their environment."""
    while found := list(_processes_of(folder)):
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(found, timeout=POLL_SECONDS)


def _processes_of(folder: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter(["environ", "status"]):
        environment = process.info["environ"] or {}
        is_other = process.pid != os.getpid() and process.info["status"] != psutil.STATUS_ZOMBIE
        if is_other and environment.get(FOLDER_VARIABLE) == folder:
            yield process


def remove_folder(folder: str) -> None:
    """Remove it, once nobody writes into it any more."""
    end_processes(folder)
    deadline = time.monotonic() + REMOVE_SECONDS
    while Path(folder).exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(POLL_SECONDS)  # PostgreSQL may be ending just now
