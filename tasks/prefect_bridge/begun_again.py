"""A flow run that Prefect begins again while the process that began it still works for it.

So it is after *Retry* of one that is called crashed though it trains, after an automation or a person set it to
`Scheduled`, and after SIGTERM where Prefect is configured to reschedule then. Invariant: the later process takes
nothing from the earlier one. It asks it to save and leave, and waits; it alone sets the flow run's state.
"""

import time

from storage.runs.holders import is_alive, this_process
from storage.runs.run_state import Lease
from storage.segment_notes import StopRecord, find_flow_runs, write_stop
from tasks.console.announce import announce
from tasks.prefect_bridge.flow_runs import find_line
from tasks.run_paths import RunPaths

POLL_SECONDS = 1.0
# Beside the ranks' own time to save and leave: until the request is found, and the segment is settled.
MARGIN_SECONDS = 30.0


def wait_for_earlier_process(run_paths: RunPaths, lease: Lease, grace_seconds: float) -> None:
    """Until the lease's holder has left, or time is up, if it works for the flow run that this process works for."""
    run, fence = run_paths.manifest.run, lease.fence
    if lease.holder == this_process() or is_alive(lease.holder) is False:
        return
    if not {str(flow_run.id) for flow_run in find_line()} & set(find_flow_runs(run_paths.store, run, fence)):
        return
    asker = f"Process {this_process().pid} on {this_process().host}, in which Prefect began this flow run again,"
    write_stop(run_paths.store, run, fence, StopRecord(asked_by=asker, asked_at=time.time(), is_handed_over=True))
    announce(
        f"Prefect began this flow run again, but process {lease.holder.pid} on {lease.holder.host} still works for it: "
        "waiting until it has saved and left."
    )
    deadline = time.monotonic() + grace_seconds + MARGIN_SECONDS
    while _holds(run_paths, lease) and is_alive(lease.holder) is not False and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)  # the end is seen only by reading the manifest


def _holds(run_paths: RunPaths, lease: Lease) -> bool:
    held = run_paths.manifest.load_head().state.lease
    return held is not None and held.fence == lease.fence
