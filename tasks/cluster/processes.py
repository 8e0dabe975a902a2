"""Processes on this machine: found by what they work on, waited for, killed with all that they started.

Invariant: a zombie counts as ended, and a process that works on a specification is found whichever process launched it.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

import psutil

POLL_SECONDS = 0.2
KILLED_SECONDS = 10.0
WORKER = "training.worker"
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


def find_orphans(specification: Path) -> list[psutil.Process]:
    """The processes that work on this specification, zombies too: ranks, and what launched them.

    Not other processes with the file's name among their arguments: a person may look at it.
    """
    return [p for p in psutil.process_iter(["cmdline"]) if _works_on(specification, p.info["cmdline"] or [])]


def _works_on(specification: Path, arguments: list[str]) -> bool:
    """Whether these are of `python ... -m training.worker SPECIFICATION`, or of torchrun with the same at its end."""
    return arguments[-3:] == ["-m", WORKER, str(specification)]


def wait_for_orphans(specification: Path, grace_seconds: float) -> int:
    """Wait until no process works on this specification any more, and kill those that stay too long; how many were met.

    Ranks whose launcher was killed get SIGTERM from the kernel and may be saving right now: what they save counts.
    """
    orphans = find_orphans(specification)
    for process in _still_running(orphans, grace_seconds):
        kill_tree(process.pid)
    # One that the kernel holds, in a driver or a file system, ends when it comes back, and does nothing before that.
    _still_running(orphans, KILLED_SECONDS)
    return len(orphans)


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


def environment_of_installation() -> dict[str, str]:
    """As this process's, but a child imports this installation, not folders of the user's that have our names."""
    path = os.pathsep.join([str(PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": path}
