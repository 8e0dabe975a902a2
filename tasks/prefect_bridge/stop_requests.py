"""Requests to stop that come from elsewhere while ranks work: `holdfast stop`, and Prefect's cancel and suspend.

`holdfast stop` leaves its request in the store, where it is found from every machine and without Prefect. Prefect kills
the process of a flow run that is cancelled, but not after it lost sight of its server for a while, nor one that it did
not start itself, and not when it suspends one: so the flow run's state is asked for too. A flow run that is to begin
again is left to the process that begins it; one that is called ended, while this process trains, is called running
again: the reconciler calls it crashed where this process stood still (SIGSTOP). Invariant: who cannot be asked is asked
again later, and training goes on meanwhile.
"""

import time

from storage.errors import HoldfastError, RunBusyError, RunHandedOverError, RunStoppedError, StoreError
from storage.runs.holders import this_process
from storage.segment_notes import find_stop
from tasks.background import BackgroundThread
from tasks.console.announce import announce
from tasks.preemption.signals import StopRequest
from tasks.prefect_bridge.flow_runs import call_running, find_line, is_called_over, is_cancelled, is_to_begin
from tasks.prefect_bridge.stale_flow_runs import remember_flow_runs
from tasks.prefect_bridge.suspension import find_suspension
from tasks.run_paths import RunPaths
from tasks.text import moment

LOOK_SECONDS = 5.0
# Prefect itself is quicker where it can; the server answers every process that trains.
LOOK_AROUND_SECONDS = 15.0


class StopRequests(BackgroundThread):
    """A context manager around the ranks of one lease: what is asked for makes the request."""

    def __init__(self, run_paths: RunPaths, fence: int, request: StopRequest) -> None:
        super().__init__("stop_requests")
        self._run_paths = run_paths
        self._fence = fence
        self._request = request
        self._look_at = time.monotonic() + LOOK_AROUND_SECONDS
        self._is_remembered = False

    def _accompany(self) -> None:
        self._is_remembered = remember_flow_runs(self._run_paths, self._fence)  # here: the server may take its time
        sources = (self._find_stop, self._look_around, _find_suspension)
        while not self._request.is_made:
            found = next(filter(None, (find() for find in sources)), None)
            if found is not None:
                announce(f"{found} The ranks save and leave.")
                self._request.make(found)
                return
            if self._is_over.wait(LOOK_SECONDS):
                return

    def _find_stop(self) -> RunStoppedError | None:
        try:
            stop = find_stop(self._run_paths.store, self._run_paths.manifest.run, self._fence)
        except StoreError:
            return None
        if stop is None:
            return None
        if stop.is_handed_over:
            return RunHandedOverError(f"{stop.asked_by} goes on with the run ({moment(stop.asked_at)}).")
        return RunStoppedError(
            f"{stop.asked_by} asked for the end of training with `holdfast stop` ({moment(stop.asked_at)})."
        )

    def _look_around(self) -> HoldfastError | None:
        """Now and then: whether another process took the run, and what is wanted of the flow run."""
        now = time.monotonic()
        if now < self._look_at:
            return None
        self._look_at = now + LOOK_AROUND_SECONDS
        # Until it is written down nobody can set their states if this machine dies.
        self._is_remembered = self._is_remembered or remember_flow_runs(self._run_paths, self._fence)
        try:
            lease = self._run_paths.manifest.load_head().state.lease
        except StoreError:
            return None
        if lease is not None and lease.fence > self._fence:
            return RunBusyError(
                f"Process {lease.holder.pid} on {lease.holder.host} took the run over, since it had not heard of this "
                "one for a while. It goes on from what was promoted before."
            )
        return self._ask_prefect(lease is not None and lease.holder == this_process())

    def _ask_prefect(self, holds_lease: bool) -> RunStoppedError | None:
        """What is wanted of the flow run; correct its shown state while it goes on, unless a process took the run."""
        line = find_line()
        if is_cancelled(line):
            return RunStoppedError("The flow run was cancelled in Prefect.")
        if is_to_begin(line):
            return RunHandedOverError("The flow run was rescheduled in Prefect: the process that begins it goes on.")
        if is_called_over(line) and holds_lease:
            call_running(line, "The run is in training, though its flow run was called ended.")
        return None


def _find_suspension() -> RunStoppedError | None:
    found = find_suspension()
    return None if found is None else RunStoppedError(found)
