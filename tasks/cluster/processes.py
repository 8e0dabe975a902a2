"""Processes on this machine: found by the locks that they hold, waited for, killed with all that they started.

Invariant: a zombie counts as ended, and a process that works in a segment's folder is found whichever process launched
it.
"""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from training.agents.locks import find_holders

POLL_SECONDS = 0.2
KILLED_SECONDS = 10.0
PACKAGE_ROOT = Path(__file__).parents[2]


def kill_tree(pid: int) -> None:
    """SIGKILL a process and all that descend from it: ranks run in sessions of their own, no group holds them all."""
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # it ended meanwhile, or its number is another's
            process.kill()


def find_orphans(folder: Path) -> list[psutil.Process]:
    """The processes that work in a segment's folder: ranks, and their agent."""
    found = []
    for holder in find_holders(folder):
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(holder.pid))
    return found


def wait_for_orphans(folder: Path, grace_seconds: float) -> int:
    """Wait until no process works in this folder any more, and kill those that stay too long; how many were met.

    Ranks whose launcher was killed get SIGTERM from the kernel and may be saving right now: what they save counts. An
    agent may begin some of them only now.
    """
    met: set[int] = set()
    deadline = time.monotonic() + grace_seconds
    while orphans := find_orphans(folder):
        met |= {process.pid for process in orphans}
        if time.monotonic() >= deadline:
            for process in orphans:
                kill_tree(process.pid)
            # One that the kernel holds, in a driver or a file system, ends when it comes back, and does nothing before.
            _still_running(orphans, KILLED_SECONDS)
            break
        time.sleep(POLL_SECONDS)  # they are no children of this process; psutil.wait_procs would wait for zombies too
    return len(met)


def _still_running(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that still run after so many seconds; as soon as none does, none.

    A zombie has ended. Whether it ever vanishes is its parent's business: the first process of a container often
    never asks for it.
    """
    deadline = time.monotonic() + seconds
    while (running := [process for process in processes if _is_running(process)]) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)  # they are no children of this process; psutil.wait_procs would wait for zombies too
    return running


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def environment_of_installation(inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """As this process's, but a child imports this installation, not folders of the user's that have our names."""
    path = os.pathsep.join([str(PACKAGE_ROOT), *filter(None, [inherited.get("PYTHONPATH")])])
    return {**inherited, "PYTHONSAFEPATH": "1", "PYTHONPATH": path}
