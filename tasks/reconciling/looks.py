"""One look at a store: which runs are there, where each stands, and what its lease's holder last said.

Invariant: reads only, and little: of a run that nobody holds one listing, of one that is held the heartbeat as well; of
one that is complete nothing for minutes. An error of the store ends the look; one of a run is that run's alone.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from storage.errors import (
    CorruptManifestError,
    CorruptObjectError,
    HoldfastError,
    IncompatibleRunError,
    ObjectMissingError,
    ObjectUnreadableError,
    StoreRefusedError,
    StoreUnavailableError,
)
from storage.objects.addresses import run_address
from storage.objects.store import Store
from storage.runs.manifest import Generation, Manifest, find_runs
from storage.runs.run_state import Lease
from storage.runs.segments import find_beat_bytes, parse_heartbeat

# To list the runs takes a request for each of them.
LIST_SECONDS = 60.0
COMPLETE_SECONDS = 300.0
# Of one run, while the store itself answers.
ERRORS_OF_A_RUN = (
    CorruptManifestError, CorruptObjectError, IncompatibleRunError, ObjectMissingError, ObjectUnreadableError,
)  # fmt: skip


@dataclass(frozen=True)
class SeenRun:
    """A run at one look. `sign` stands still while nobody holds it, or its holder gives no sign of life."""

    run: str
    address: str
    head: Generation
    sign: str | None
    live_step: int | None

    @property
    def lease(self) -> Lease | None:
        return self.head.state.lease

    @property
    def step(self) -> int:
        """Of the resume point."""
        promoted = self.head.state.promoted
        return promoted.step if promoted is not None else 0

    @property
    def fence(self) -> int:
        """Of the segment under way, or else of the last one; 0 before the first."""
        state = self.head.state
        if state.lease is not None:
            return state.lease.fence
        return state.segments[-1].fence if state.segments else 0


@dataclass(frozen=True)
class StoreLook:
    """The runs of a store at one look, by name, and why some could not be read."""

    runs: Mapping[str, SeenRun]
    unreadable: Mapping[str, str]


class StoreReader:
    """Looks at one store again and again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names: list[str] = []
        self._listed_at: float | None = None
        self._seen: dict[str, SeenRun] = {}
        self._read_at: dict[str, float] = {}

    def look(self, now: float) -> StoreLook:
        """What is there. `now` is of the watcher's monotonic clock. Raises `HoldfastError` if the store fails."""
        if self._listed_at is None or now - self._listed_at >= LIST_SECONDS:
            self._names = find_runs(self._store)
            self._listed_at = now
            self._seen = {run: seen for run, seen in self._seen.items() if run in self._names}
        unreadable: dict[str, str] = {}
        for run in self._names:
            try:
                self._look_at(run, now)
            except ERRORS_OF_A_RUN as error:
                self._seen.pop(run, None)
                unreadable[run] = str(error)
        return StoreLook(dict(self._seen), unreadable)

    def _look_at(self, run: str, now: float) -> None:
        known = self._seen.get(run)
        is_complete = known is not None and known.lease is None and known.head.state.is_complete
        if is_complete and now - self._read_at[run] < COMPLETE_SECONDS:
            return
        head = Manifest(self._store, run).find_head(known.head if known is not None else None)
        if head is None:
            self._seen.pop(run, None)  # deleted since it was listed
            return
        self._seen[run] = self._see(run, head)
        self._read_at[run] = now

    def _see(self, run: str, head: Generation) -> SeenRun:
        address, lease = run_address(self._store, run), head.state.lease
        if lease is None:
            return SeenRun(run, address, head, None, None)
        # Its bytes, not its fields: that of another version may have others, and is a sign all the same.
        data = find_beat_bytes(self._store, run, lease.fence)
        beat = None if data is None else parse_heartbeat(data)
        said = "" if data is None else hashlib.sha256(data).hexdigest()
        # The generation too: who takes the watch over holds the same lease, and promotions are signs of life.
        return SeenRun(run, address, head, f"{head.generation} {said}", None if beat is None else beat.step)


def is_refusal(error: HoldfastError) -> bool:
    """Whether the store answers and refuses, where one that is away does not answer."""
    return isinstance(error, StoreRefusedError) or not isinstance(error, StoreUnavailableError)
