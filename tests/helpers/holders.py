"""Processes that hold a lease: one that has died, one that lives, one on another machine."""

import os
from pathlib import Path

from storage.runs.holders import this_process
from storage.runs.run_state import Holder

STAT_START_TICKS = 19  # counted from the field behind the process's name: proc_pid_stat(5)


def dead_process() -> Holder:
    """One on this machine, with the number of a process that began later."""
    return this_process().model_copy(update={"start_ticks": this_process().start_ticks - 1})


def parent_process() -> Holder:
    """Another process that lives on this machine."""
    return holder_of(os.getppid())


def holder_of(pid: int) -> Holder:
    """A process of this machine."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return this_process().model_copy(update={"pid": pid, "start_ticks": int(fields[STAT_START_TICKS])})


def process_elsewhere() -> Holder:
    """One that cannot be seen from here."""
    return this_process().model_copy(update={"host": "another-host", "pid_scope": "another boot"})
