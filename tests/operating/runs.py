"""Runs that are operated, and what is seen of them: steps second by second, flow runs, pages.

Invariant: what is seen of a run is what its manifest, its heartbeats, Prefect's API and the webhook say.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from storage.errors import HoldfastError
from storage.objects.store import Store
from storage.runs.manifest import Manifest
from storage.runs.run_state import RunState
from storage.runs.segments import find_heartbeat
from storage.segment_notes import find_flow_runs
from tests.helpers.operators import CONFIGURATION, ENDED
from tests.operating.place import ADDRESS, Place

LOOK_SECONDS = 1.0
POLL_SECONDS = 0.5
WAIT_SECONDS = 600.0
# Half a minute to two of training, by steps that are slowed down to a tenth of a second.
STEPS = 600
SAVE_EVERY = 50
CRON = "*/5 * * * *"


@dataclass(frozen=True)
class Moment:
    """A step that was seen, and the fence under which it was made."""

    at: float
    fence: int
    step: int


@dataclass
class Seen:
    """Moments of all runs, one for each change."""

    moments: dict[str, list[Moment]] = field(default_factory=dict)

    def longest_pause(self, run: str, since: float) -> float:
        """Seconds without a step that was seen, from `since` until the last step. Heartbeats have 5 s between them."""
        moments = self.moments[run]
        before = [moment.at for moment in moments if moment.at <= since]
        times = [*before[-1:], *(moment.at for moment in moments if moment.at > since)]
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)


class Watch:
    """Looks at the heartbeats of all runs that it is told of."""

    def __init__(self, store: Store) -> None:
        self.seen = Seen()
        self._store = store
        self._runs: list[str] = []
        self._is_over = threading.Event()

    def add(self, run: str) -> None:
        self.seen.moments[run] = []
        self._runs.append(run)

    def look_until_over(self) -> None:
        while not self._is_over.wait(LOOK_SECONDS):
            for run in list(self._runs):
                try:
                    self._look(run)
                except HoldfastError:
                    continue  # it has not begun, or this user is refused just now
                except Exception as error:  # noqa: BLE001 - what is not seen is a longer pause, and is said
                    print(f"could not look at {run}: {error}", flush=True)

    def _look(self, run: str) -> None:
        state = Manifest(self._store, run).load_head().state
        moments = self.seen.moments[run]
        if state.lease is not None:
            beat = find_heartbeat(self._store, run, state.lease.fence)
            step = state.lease.first_step if beat is None else beat.step
            moment = Moment(time.monotonic(), state.lease.fence, step)
        elif state.promoted is not None:
            moment = Moment(time.monotonic(), state.promoted.fence, state.promoted.step)
        else:
            return
        if not moments or (moments[-1].fence, moments[-1].step) != (moment.fence, moment.step):
            moments.append(moment)
        if state.is_complete:
            self._runs.remove(run)

    @contextmanager
    def looking(self) -> Iterator[None]:
        thread = threading.Thread(target=self.look_until_over, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()


class Run:
    """One that is deployed on a schedule, and what people do with it."""

    def __init__(self, place: Place, watch: Watch, name: str, **settings: object) -> None:
        self.place, self.watch, self.name = place, watch, name
        text = CONFIGURATION.replace('run = "tiny"', f'run = "{name}"').replace('"store"', f'"{ADDRESS}"')
        text = text.replace("store = ", f'scratch = "{place.folder / "scratch"}"\nstore = ', 1)
        (place.folder / f"{name}.toml").write_text(text)
        given: dict[str, object] = {
            "train.steps": STEPS, "train.ranks": 1, "checkpoint.every_steps": SAVE_EVERY,
            "validation.every_steps": STEPS // 2, "retry.delay_seconds": 1,
        }  # fmt: skip
        self.assignments = {**given, **settings}

    def deploy(self) -> None:
        """With its schedule, as a person does it."""
        self.watch.add(self.name)
        settings = [part for name, value in self.assignments.items() for part in ("--set", f"{name}={value}")]
        typed = self.place.type("deploy", f"{self.name}.toml", "--schedule", CRON, *settings)
        assert typed.returncode == 0, typed.stdout + typed.stderr

    def begin(self) -> str:
        """Deploy it, and ask for a flow run now; its ID."""
        self.deploy()
        return self.submit()

    def submit(self) -> str:
        found = self.place.operator.deployment(f"scheduled/{self.name}")
        url = f"/deployments/{found['id']}/create_flow_run"
        return str(self.place.operator.request("POST", url, json={})["id"])

    @property
    def state(self) -> RunState:
        return Manifest(self.place.store, self.name).load_head().state

    @property
    def address(self) -> str:
        return f"{ADDRESS}/runs/{self.name}"

    def is_training(self) -> bool:
        """Whether a process trains it that has promoted a checkpoint of its own, and has said in which flow run."""
        try:
            state = self.state
        except HoldfastError:
            return False
        has_saved = state.lease is not None and state.promoted is not None and state.promoted.fence == state.lease.fence
        return has_saved and bool(self.flow_runs_of_holder())

    def is_complete(self) -> bool:
        try:
            return self.state.is_complete
        except HoldfastError:
            return False

    def flow_runs_of_holder(self) -> list[str]:
        """In which its lease was taken: the flow `train`, then the deployed flow around it."""
        lease = self.state.lease
        return [] if lease is None else find_flow_runs(self.place.store, self.name, lease.fence)

    def machine(self) -> str:
        lease = self.state.lease
        assert lease is not None, f"nobody holds {self.name}"
        return lease.holder.host

    def states(self, flow_runs: list[str]) -> list[str]:
        """The names of their states; `-` for one that is deleted."""
        names = []
        for one in flow_runs:
            answer = self.place.operator.api.get(f"/flow_runs/{one}")
            names.append(answer.json()["state"]["name"] if answer.is_success else "-")
        return names

    def all_flow_runs(self) -> list[str]:
        """Of its deployment, that have begun, and the flow runs `train` below them."""
        operator = self.place.operator
        begun = operator.flow_runs(f"scheduled/{self.name}")
        below = {"flow_runs": {"parent_flow_run_id": {"any_": begun}}}
        return begun + [str(one["id"]) for one in operator.request("POST", "/flow_runs/filter", json=below)]

    def are_final(self, flow_runs: list[str]) -> bool:
        answers = [self.place.operator.api.get(f"/flow_runs/{one}") for one in flow_runs]
        return all(not answer.is_success or answer.json()["state"]["type"] in ENDED for answer in answers)

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
        wait_for(condition, f"{self.name}: {what}", seconds)

    def wait_until_training(self) -> None:
        self.wait(self.is_training, "it trains and has saved")


def wait_for(condition: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Raises `TimeoutError` that says what was waited for."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(POLL_SECONDS)  # what is waited for stands in a store or on the server, which are asked again


def wait_for_all(runs: list[Run]) -> None:
    """Until all of them train."""
    for run in runs:
        run.wait(partial(run.is_training), "it trains and has saved")
