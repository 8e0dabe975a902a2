"""Stores with runs for a reconciler, a clock that is set by hand, people who note what they are told, and a Prefect.

Not real: the clock, and in unit tests the Prefect, of which only what is asked is noted; a real server is in
`integration/test_reconcile.py`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from storage.errors import StoreError
from storage.objects.local_store import LocalStore
from storage.objects.store import Store
from storage.runs.holders import this_process
from storage.runs.manifest import Manifest
from storage.runs.run_state import RunState
from storage.runs.segments import Heartbeat, write_heartbeat
from storage.runs.transitions import take_lease
from tasks.reconciling.consequences import TAKEN_UP, ServerAwayError, Tended
from tasks.reconciling.looks import SeenRun
from tasks.reconciling.outbox import Outbox
from tasks.reconciling.store_watch import StoreWatch
from tests.helpers.finished_runs import segments_of, state_of
from tests.helpers.runs import lease_run, make_run

LOOK_SECONDS = 15.0
LOOKS_UNTIL_DEAD = 5  # the first one, and a minute of them
LOOKS_A_MINUTE = 4
LOOKS_UNTIL_LONE_DEAD = 1 + 6 * LOOKS_A_MINUTE  # the first one, and six more, one in a minute


@dataclass
class Clock:
    """Monotonic seconds."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Person:
    """Who is told: the subjects, in their order, and the bodies. `trouble` is why no message arrives just now."""

    name: str = "person"
    subjects: list[str] = field(default_factory=list)
    bodies: list[str] = field(default_factory=list)
    trouble: str | None = None

    def send(self, subject: str, body: str) -> str | None:
        if self.trouble is None:
            self.subjects.append(subject)
            self.bodies.append(body)
        return self.trouble


@dataclass
class NotedPrefect:
    """What was asked for, by address; `is_away`: no answer. `signs` are of what is shown as running, of no held run."""

    gone_on: list[tuple[str, list[str], bool]] = field(default_factory=list)
    paused: list[str] = field(default_factory=list)
    signs: dict[UUID, str] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)  # at the last look
    called_dead: list[UUID] = field(default_factory=list)
    num_asked_again: int = 0
    is_away: bool = False
    others_begin: bool = False
    taken_up: bool = False
    has_deployments: bool = True

    def go_on(self, seen: SeenRun, ids: Sequence[str], is_to_stop: bool, is_again: bool) -> str:
        self._answer()
        if is_again:
            self.num_asked_again += 1
        else:
            self.gone_on.append((seen.address, list(ids), is_to_stop))
        return TAKEN_UP if self.others_begin else "The next flow run is lucky-otter."

    def is_taken_up(self, seen: SeenRun) -> bool:
        self._answer()
        return self.taken_up

    def tend(self, addresses: Collection[str], complete: Collection[str]) -> Tended:
        self._answer()
        assert set(complete) <= set(addresses)
        at_rest = complete if self.has_deployments else []
        self.paused += at_rest
        return Tended(at_rest, 0)

    def find_signs(self, store_address: str, held: Collection[str]) -> Mapping[UUID, str]:
        self._answer()
        assert all(address.startswith(f"{store_address}/") for address in held)
        self.held = set(held)
        return dict(self.signs)

    def call_dead(self, id: UUID) -> str | None:
        self._answer()
        self.called_dead.append(id)
        return "lone-otter" if self.signs.pop(id, None) is not None else None

    def _answer(self) -> None:
        if self.is_away:
            raise ServerAwayError("away")


class AwayStore(LocalStore):
    """A store in a folder that raises `trouble`, if there is one, whatever it is asked for."""

    trouble: StoreError | None = None

    def read(self, key: str) -> bytes:
        self._answer()
        return super().read(key)

    def write(self, key: str, data: bytes) -> None:
        self._answer()
        super().write(key, data)

    def write_if_absent(self, key: str, data: bytes) -> None:
        self._answer()
        super().write_if_absent(key, data)

    def list_keys(self, prefix: str, after: str = "", most: int | None = None) -> Iterator[str]:
        self._answer()
        yield from super().list_keys(prefix, after, most)

    def _answer(self) -> None:
        if self.trouble is not None:
            raise self.trouble


class Watcher:
    """A reconciler's watch over one store, that looks when it is told to, with its people and its Prefect."""

    def __init__(self, store: Store, person: Person, prefect: NotedPrefect, clock: Clock) -> None:
        self.clock, self.outbox = clock, Outbox([person])
        self.watch = StoreWatch(store, "a test", prefect, self.outbox, clock=clock)

    def look(self, times: int = 1, beats: "Holder | None" = None) -> None:
        """So many looks, 15 s apart; before each of them the holder beats."""
        for _ in range(times):
            self.clock.now += LOOK_SECONDS
            if beats is not None:
                beats.beat()
            self.watch.look()
            self.outbox.send_all()


@dataclass
class Holder:
    """Who holds a lease, and beats when it is told to."""

    store: Store
    run: str
    fence: int
    num_beats: int = 0

    def beat(self) -> None:
        self.num_beats += 1
        beat = Heartbeat(beat=self.num_beats, step=7, written_at=0.0)  # its clock is wrong
        write_heartbeat(self.store, self.run, self.fence, beat)


def hold(store: Store, run: str) -> Holder:
    """A new run whose lease is held."""
    holder = Holder(store, run, lease_run(make_run(store, run)))
    holder.beat()
    return holder


def hold_again(store: Store, run: str) -> Holder:
    """The next lease of a run, as the next flow run takes it."""
    change = take_lease(this_process(), 1)

    def take(state: RunState, generation: int) -> RunState:
        return change(state.model_copy(update={"lease": None}), generation)

    lease = Manifest(store, run).commit("segment began", take).state.lease
    assert lease is not None
    return Holder(store, run, lease.fence)


def put_run(store: Store, run: str, outcome: str = "completed", **changes: Any) -> Manifest:
    """A run of one segment that ended like this; completed: it is complete."""
    steps = 100 if outcome == "completed" else 40
    tested = {"metrics": {"macro_f1": 0.9}, "metrics_step": steps} if outcome == "completed" else {}
    state = state_of(run, 100, segments_of([(outcome, "out of memory", steps, 0)]), **tested | changes)
    manifest = Manifest(store, run)
    manifest.create(state)
    return manifest
