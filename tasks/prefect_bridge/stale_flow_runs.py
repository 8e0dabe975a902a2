"""What Prefect shows of a process that was killed: its flow runs and their steps, running for ever.

Invariant: the process that takes the lease records in which flow runs; the one that finds its holder dead sets their
state. None of it decides anything about the run.
"""

from contextlib import suppress

from storage.errors import StoreError
from storage.runs.holders import this_process
from storage.runs.run_state import Lease
from storage.segment_notes import FlowRunsRecord, find_flow_runs, write_flow_runs
from tasks.prefect_bridge.flow_runs import call_crashed, find_line, find_own
from tasks.run_paths import RunPaths


def remember_flow_runs(run_paths: RunPaths, fence: int) -> bool:
    """Write down in which flow runs a lease was taken; False if the server or the store has to be asked again."""
    if find_own() is None:
        return True
    ids = [str(flow_run.id) for flow_run in find_line()]
    if not ids:
        return False
    try:
        write_flow_runs(run_paths.store, run_paths.manifest.run, fence, FlowRunsRecord(ids=ids))
    except StoreError:
        return False
    return True


def close_flow_runs(run_paths: RunPaths, lease: Lease) -> None:
    """Set flow runs to crashed in which a lease was taken whose holder is dead."""
    if lease.holder == this_process():
        return  # an earlier attempt of this very flow run
    with suppress(StoreError):
        ids = find_flow_runs(run_paths.store, run_paths.manifest.run, lease.fence)
        call_crashed(
            ids, "The process or its machine was killed, or stood still. Another process goes on with the run."
        )
