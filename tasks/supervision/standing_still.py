"""A process that holds a run's lease on this machine and stands still: SIGSTOP, Ctrl-Z or a debugger stopped it.

It lives, so no process may take the run from it, and by itself it never goes on. Invariant: this is only reported,
once the heartbeat is as old as the one of a process that is given up elsewhere: one that is stopped for a moment is
left alone.
"""

import time

from storage.objects.store import Store
from storage.runs.holders import find_stopped
from storage.runs.run_state import Lease
from storage.runs.segments import find_heartbeat
from tasks.text import duration

SILENCE_SECONDS = 60.0


def describe_stopped(store: Store, run: str, lease: Lease) -> str | None:
    """What stands still and what to do about it, in two sentences; None where nothing does."""
    stopped = find_stopped(lease.holder)
    if not stopped:
        return None
    heartbeat = find_heartbeat(store, run, lease.fence)
    seen_at = heartbeat.written_at if heartbeat is not None else lease.taken_at
    silent_seconds = time.time() - seen_at  # by the clock of one machine
    if silent_seconds <= SILENCE_SECONDS:
        return None
    return (
        f"Process {lease.holder.pid} on {lease.holder.host}, which holds run {run!r}, is stopped (by SIGSTOP, "
        f"Ctrl-Z or a debugger) and has given no sign of life for {duration(silent_seconds)}. It goes on after "
        f"`kill -CONT {' '.join(map(str, stopped))}`; after `kill -KILL {lease.holder.pid}` another process can go on "
        "from the last promoted checkpoint."
    )
