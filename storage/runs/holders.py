"""Which process holds a lease, and whether it still lives.

Invariant: a process is called dead only from where it could be seen: on the same machine since the same boot, in the
same PID namespace (two containers on one machine do not see each other), and not where /proc hides it (its option
hidepid) though a process of its number lives. Its start in clock ticks since boot distinguishes it from a later process
with the same number, and does not move when the clock is set.
"""

import os
import socket
import time
from pathlib import Path

import psutil

from storage.runs.run_state import Holder

START_TICKS_FIELD = 22  # of /proc/PID/stat, counted from 1: proc_pid_stat(5)


def this_process() -> Holder:
    """The calling process as a holder."""
    return _holder(os.getpid())


def find_process(pid: int) -> Holder | None:
    """A process that is seen from here, as a holder; None if it has ended."""
    try:
        return _holder(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None


def process_age_seconds() -> float:
    """How long ago the calling process began, on a clock that is never set."""
    began = _start_ticks(os.getpid()) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began)


def is_alive(holder: Holder) -> bool | None:
    """Whether the holder's process lives; None if it runs, or ran, where this process cannot see it."""
    if not is_visible(holder):
        return None
    try:
        is_same = _start_ticks(holder.pid) == holder.start_ticks
        return is_same and bool(psutil.Process(holder.pid).status() != psutil.STATUS_ZOMBIE)
    except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
        return None if _is_there(holder.pid) else False
    except (PermissionError, psutil.AccessDenied):
        return None


def find_stopped(holder: Holder) -> list[int]:
    """The holder's process and those that it started, as far as SIGSTOP or a debugger stopped them.

    Empty if the holder itself goes on, is dead, or ran where this process cannot see it.
    """
    if not is_alive(holder):
        return []
    try:
        root = psutil.Process(holder.pid)
        if not _is_stopped(root):
            return []
        return [one.pid for one in (root, *root.children(recursive=True)) if _is_stopped(one)]
    except psutil.NoSuchProcess:
        return []


def is_visible(holder: Holder) -> bool:
    """Whether the holder's process, and those that it started, would be seen from here if they live."""
    return holder.pid_scope == _pid_scope()


def _holder(pid: int) -> Holder:
    return Holder(host=socket.gethostname(), pid_scope=_pid_scope(), pid=pid, start_ticks=_start_ticks(pid))


def _is_there(pid: int) -> bool:
    """Whether there is a process of this number, though /proc does not show it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    return True


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.NoSuchProcess:
        return False


def _pid_scope() -> str:
    """Boot and PID namespace: process numbers are unique within one such pair, and mean nothing in another."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


def _start_ticks(pid: int) -> int:
    # The process's name stands in parentheses and may hold anything, also parentheses: count after the last one.
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(after_name[START_TICKS_FIELD - 3])
