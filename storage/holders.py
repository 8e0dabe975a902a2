"""Which process holds a lease, and whether it still lives.

Invariant: a dead process is never taken for a living one because its number was given out again: the machine's boot id
and the process's creation time are part of the identity.
"""

import os
import socket
from pathlib import Path

import psutil

from storage.run_state import Holder

# psutil derives creation times from clock ticks; reading one twice may differ in the last digits.
START_TOLERANCE_SECONDS = 0.05


def this_process() -> Holder:
    """The calling process as a holder."""
    return describe_process(os.getpid())


def describe_process(pid: int) -> Holder:
    """A living process of this machine as a holder."""
    return Holder(host=socket.gethostname(), boot=_boot_id(), pid=pid, started=psutil.Process(pid).create_time())


def is_alive(holder: Holder) -> bool | None:
    """Whether the holder's process lives; None if it ran on another machine, about which nothing is known."""
    if holder.boot != _boot_id():
        return False if holder.host == socket.gethostname() else None
    try:
        process = psutil.Process(holder.pid)
        is_same = abs(process.create_time() - holder.started) < START_TOLERANCE_SECONDS
        return bool(is_same and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _boot_id() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else f"booted {psutil.boot_time():.0f}"
