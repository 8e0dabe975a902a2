"""Requests to stop that come from elsewhere while ranks work: `holdfast stop`, and Prefect's cancel and suspend.

`holdfast stop` leaves its request in the store, where it is found from every machine and without Prefect. Prefect kills
the process of a flow run that is cancelled, but not after it lost sight of its server for a while, nor one that it did
not start itself, and not when it suspends one: so the flow run's state is asked for too. Invariant: who cannot be asked
is asked again later, and training goes on meanwhile.
"""

import time
from collections.abc import Callable

from storage.errors import RunStoppedError, StoreError
from storage.segment_notes import find_stop
from tasks.beside.companion import Companion
from tasks.pages.words import moment
from tasks.places import RunPlaces
from tasks.remote.left_running import remember_flow_runs
from tasks.remote.suspension import find_suspension
from tasks.stopping.signals import StopRequest
from tasks.telling.announce import announce
from tasks.telling.flow_runs import is_cancelled

LOOK_SECONDS = 5.0
# Prefect itself is quicker where it can; the server answers every process that trains.
ASK_PREFECT_SECONDS = 15.0


class Wishes(Companion):
    """A context manager around the ranks of one lease: what is asked for makes the request."""

    def __init__(self, places: RunPlaces, fence: int, request: StopRequest) -> None:
        super().__init__("wishes")
        self._places = places
        self._fence = fence
        self._request = request
        self._ask_prefect_at = time.monotonic() + ASK_PREFECT_SECONDS

    def _accompany(self) -> None:
        remember_flow_runs(self._places, self._fence)  # here, since the server may take its time
        wishes: tuple[Callable[[], str | None], ...] = (self._find_stop, self._find_cancel, find_suspension)
        while not self._request.is_made:
            found = next(filter(None, (wish() for wish in wishes)), None)
            if found is not None:
                announce(f"{found} The ranks save and leave.")
                self._request.make(RunStoppedError(found))
                return
            if self._is_over.wait(LOOK_SECONDS):
                return

    def _find_stop(self) -> str | None:
        try:
            stop = find_stop(self._places.store, self._places.manifest.run, self._fence)
        except StoreError:
            return None
        if stop is None:
            return None
        return f"{stop.asked_by} asked for the end of training with `holdfast stop` ({moment(stop.asked_at)})."

    def _find_cancel(self) -> str | None:
        now = time.monotonic()
        if now < self._ask_prefect_at:
            return None
        self._ask_prefect_at = now + ASK_PREFECT_SECONDS
        return "The flow run was cancelled in Prefect." if is_cancelled() else None
