"""Somebody who runs deployments on a real Prefect server, as they would by the UI and the commands of the README.

Invariant: asks the server's API, and the run's manifest; nothing in here knows how a flow run does its work.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import psutil
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.run_state import RunState
from tasks.corpora.generate import generate_corpus
from tests.helpers.commands import COMMAND, ROOT, call_here
from tests.helpers.prefect_server import ANSWER_SECONDS, PATIENT, RETRIES_WHILE_BUSY, running

WAIT_SECONDS = 150.0
POLL_SECONDS = 0.5
SOON_SECONDS = 10  # twice as long as the server takes to see that a schedule has changed
MINUTE_SECONDS = 60
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
PREFECT = (sys.executable, "-m", "prefect", "--no-prompt")
WORKER = ("worker", "start", "--pool", "holdfast")  # by the README
# The 29th of February: what is not submitted does not begin while tests run, whatever the hour.
NEVER = "0 0 29 2 *"
CORPUS_ROWS = 600
# Comes to its end in no test: a signal or the time budget is what stops it, or a smaller number of steps.
ENDLESS = 1_000_000
CONFIGURATION = f"""
run = "tiny"
store = "store"

[data]
source = "corpus"
text = "prompt_text"
label = "violation_class"
kind = "multiclass"
vocabulary_size = 300
max_tokens = 32
too_long = "truncate"
shard_rows = 256
row_group_rows = 64

[model]
width = 16
layers = 1
heads = 2
feedforward = 32

[train]
steps = {ENDLESS}
batch_size = 8
microbatches = 2

[checkpoint]
every_steps = 400

[validation]
every_steps = {ENDLESS}

[retry]
delay_seconds = 0.1
"""


@dataclass(frozen=True)
class Operator:
    """Somebody with the server's address and the folder that was deployed from."""

    api: httpx.Client
    folder: Path
    worker_log: Path

    def type(self, *arguments: object) -> "subprocess.CompletedProcess[str]":
        """`holdfast` with these arguments, in the folder and in this process."""
        with contextlib.chdir(self.folder), temporary_settings({PREFECT_CLIENT_MAX_RETRIES: RETRIES_WHILE_BUSY}):
            return call_with_server(str(self.api.base_url).rstrip("/"), arguments)

    def deployment(self, name: str) -> dict[str, Any]:
        """A deployment as the server knows it; its name is FLOW/DEPLOYMENT."""
        return dict(self.request("GET", f"/deployments/name/{name}"))

    def submit(self, name: str, tags: Sequence[str] = (), **parameters: Any) -> str:
        """Ask for a flow run, as the form of the UI does; tags may be given there too."""
        url = f"/deployments/{self.deployment(name)['id']}/create_flow_run"
        return str(self.request("POST", url, json={"parameters": parameters, "tags": list(tags)})["id"])

    def begin_by_itself(self, name: str, **parameters: Any) -> None:
        """Let the deployment's schedule begin a flow run soon, and one a minute after that."""
        deployment = self.deployment(name)
        soon = datetime.now(UTC) + timedelta(seconds=SOON_SECONDS)
        rule = {"interval": MINUTE_SECONDS, "anchor_date": soon.isoformat()}
        content = {"active": True, "schedule": rule, "parameters": parameters}
        for schedule in deployment["schedules"]:
            self.request("PATCH", f"/deployments/{deployment['id']}/schedules/{schedule['id']}", json=content)

    def rest(self, name: str) -> None:
        """Pause all schedules of a deployment, and take back what they have planned: a pause leaves what is due."""
        deployment = self.deployment(name)
        for schedule in deployment["schedules"]:
            self.pause(deployment["id"], schedule["id"])
        for planned in self._planned(name):
            self.request("DELETE", f"/flow_runs/{planned['id']}")

    def running(self, name: str) -> list[str]:
        """The flow runs of a deployment that are running."""
        return [str(found["id"]) for found in self._flow_runs(name, "RUNNING")]

    def pause(self, deployment: str, schedule: str) -> None:
        """Pause one schedule of a deployment."""
        self.request("PATCH", f"/deployments/{deployment}/schedules/{schedule}", json={"active": False})

    def begin(self, run: str, *assignments: str) -> str:
        """Ask for a flow run that trains a new run, by the configuration `tiny.toml`; it has got on."""
        flow_run = self.submit("scheduled/train", configuration="tiny.toml", assignments=[f"run={run}", *assignments])
        self.wait(lambda: self.segment_has_saved(1, run))
        return flow_run

    def run(self, name: str, **parameters: Any) -> dict[str, Any]:
        """Ask for a flow run and wait for its final state."""
        flow_run = self.submit(name, **parameters)
        self.wait(lambda: self.states(flow_run)[-1]["type"] in ENDED)
        return dict(self.request("GET", f"/flow_runs/{flow_run}"))

    def cancel(self, flow_run: str) -> None:
        """Press Cancel."""
        state = {"type": "CANCELLING", "name": "Cancelling"}
        self.request("POST", f"/flow_runs/{flow_run}/set_state", json={"state": state})

    def suspend(self, flow_run: str) -> None:
        """Press Pause, which the UI offers and which suspends a flow run."""
        details = {"pause_timeout": None, "pause_reschedule": True}
        state = {"type": "PAUSED", "name": "Suspended", "state_details": details}
        self.request("POST", f"/flow_runs/{flow_run}/set_state", json={"state": state})

    def reschedule(self, flow_run: str) -> None:
        """Do what Retry does, which the UI offers of flow runs that are shown as ended, and the API of all."""
        state = {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "Retry from the UI"}
        self.request("POST", f"/flow_runs/{flow_run}/set_state", json={"state": state, "force": True})

    def call_crashed(self, flow_run: str) -> None:
        """As the reconciler does with a flow run whose process stands still."""
        state = {"type": "CRASHED", "name": "Crashed", "message": "Not heard of for a minute."}
        self.request("POST", f"/flow_runs/{flow_run}/set_state", json={"state": state, "force": True})

    def resume(self, flow_run: str) -> None:
        """Press Resume."""
        self.request("POST", f"/flow_runs/{flow_run}/resume", json={})

    def flow_runs(self, name: str) -> list[str]:
        """The flow runs of a deployment that have begun, and those that are to begin without its schedule."""
        wanted = {"deployments": {"id": {"any_": [self.deployment(name)["id"]]}}}
        found = self.request("POST", "/flow_runs/filter", json=wanted)
        return [str(run["id"]) for run in found if not run["auto_scheduled"] or run["start_time"]]

    def tags(self, flow_run: str) -> list[str]:
        """The tags of a flow run."""
        return list(self.request("GET", f"/flow_runs/{flow_run}")["tags"])

    def steps(self, flow_run: str) -> dict[str, str]:
        """The steps of a flow run, by name: the type of each one's state."""
        wanted = {"task_runs": {"flow_run_id": {"any_": [flow_run]}}}
        found = self.request("POST", "/task_runs/filter", json=wanted)
        return {step["name"]: step["state"]["type"] for step in found if step["state"]}

    def artifacts(self, flow_run: str) -> dict[str, dict[str, Any]]:
        """The artifacts of a flow run, by key."""
        wanted = {"artifacts": {"flow_run_id": {"any_": [flow_run]}}}
        return {found["key"]: found for found in self.request("POST", "/artifacts/filter", json=wanted)}

    def states(self, flow_run: str) -> list[dict[str, Any]]:
        """All states that a flow run has been in, the oldest first."""
        found = self.request("GET", "/flow_run_states/", params={"flow_run_id": flow_run})
        return sorted(found, key=lambda state: state["timestamp"])

    def find_training(self, flow_run: str) -> str:
        """The run of the flow `train` that a deployed flow made."""
        parents = {"flow_runs": {"parent_flow_run_id": {"any_": [flow_run]}}}
        (found,) = self.request("POST", "/flow_runs/filter", json=parents)
        return str(found["id"])

    def events(self, name: str, resource: str) -> list[dict[str, Any]]:
        """The events of this name, about this, that the server has heard of."""
        wanted = {"event": {"name": [name]}, "resource": {"id": [resource]}}
        return list(self.request("POST", "/events/filter", json={"filter": wanted})["events"])

    def automations(self, beginning: str) -> dict[str, dict[str, Any]]:
        """The automations whose names begin so, by name; fails if there are two of one name."""
        all_named = self.request("POST", "/automations/filter", json={})
        found = [automation for automation in all_named if automation["name"].startswith(beginning)]
        by_name = {automation["name"]: automation for automation in found}
        assert len(by_name) == len(found)
        return by_name

    def delete_deployments(self, tag: str) -> None:
        """Delete all deployments with this tag, or the server would plan their flow runs on and on."""
        for deployment in self.request("POST", "/deployments/filter", json={"deployments": {"tags": {"all_": [tag]}}}):
            self.request("DELETE", f"/deployments/{deployment['id']}")

    def scheduled_times(self, name: str) -> list[datetime]:
        """When the flow runs begin that the server itself has planned."""
        return sorted(datetime.fromisoformat(run["expected_start_time"]) for run in self._planned(name))

    def _planned(self, name: str) -> list[dict[str, Any]]:
        return [run for run in self._flow_runs(name, "SCHEDULED") if run["auto_scheduled"]]

    def _flow_runs(self, name: str, state: str) -> list[dict[str, Any]]:
        """The flow runs of a deployment that are in this type of state."""
        wanted = {
            "deployments": {"id": {"any_": [self.deployment(name)["id"]]}},
            "flow_runs": {"state": {"type": {"any_": [state]}}},
        }
        return list(self.request("POST", "/flow_runs/filter", json=wanted))

    def state(self, run: str = "tiny") -> RunState:
        """Where the run stands, by its manifest."""
        return Manifest(LocalStore(self.folder / "store"), run).load_head().state

    def has_begun(self, run: str) -> bool:
        """Whether the run has a manifest."""
        return Manifest(LocalStore(self.folder / "store"), run).find_head() is not None

    def segment_has_saved(self, number: int, run: str = "tiny") -> bool:
        """Whether this segment of the run is the one in training, and a checkpoint of its own is promoted."""
        if not self.has_begun(run):
            return False
        segments, promoted = (state := self.state(run)).segments, state.promoted
        fence = segments[-1].fence if segments else 0
        return len(segments) == number - 1 and promoted is not None and promoted.fence > fence

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                log = self.worker_log.read_text()[-4000:] if self.worker_log.exists() else "(no worker was started)"
                raise TimeoutError(f"not within {WAIT_SECONDS:.0f} s:\n{log}")
            time.sleep(POLL_SECONDS)  # what is waited for stands in a store or on the server, which are asked again

    def request(self, method: str, url: str, **content: Any) -> Any:
        """The server says 503 while its database is locked; Prefect's own clients ask again too."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while (response := self.api.request(method, url, **content)).status_code == httpx.codes.SERVICE_UNAVAILABLE:
            assert time.monotonic() < deadline, f"503 for {ANSWER_SECONDS:.0f} s: {method} {url}"
            time.sleep(POLL_SECONDS)  # until the lock is gone
        assert response.is_success, response.text
        return response.json() if response.content else None


def call_with_server(url: str | None, arguments: Sequence[object]) -> "subprocess.CompletedProcess[str]":
    """`holdfast` with these arguments in this process, where PREFECT_API_URL is this, or where it is not set."""
    with patch.dict(os.environ), temporary_settings({PREFECT_API_URL: url}):
        return call_here(arguments)


@contextmanager
def operating(folder: Path, environment: Mapping[str, str]) -> Iterator[Operator]:
    """All deployments deployed from a new folder that has a corpus, and `tiny.toml` to train on it."""
    (folder / "tiny.toml").write_text(CONFIGURATION)
    generate_corpus(folder / "corpus", "policy", CORPUS_ROWS)
    with deployed(folder, PREFECT, environment) as operator:
        yield operator


@contextmanager
def operating_reconciled(folder: Path, environment: Mapping[str, str]) -> Iterator[Operator]:
    """As `operating`, with a process that keeps the server true to the store in the folder, and has a log there."""
    store = folder / "store"
    store.mkdir()  # it refuses a folder that is not there
    command = [*COMMAND, "reconcile", str(store)]
    with (
        operating(folder, environment) as operator,
        running(command, environment, folder / "reconciler.log", folder),
    ):
        yield operator


@contextmanager
def deployed(
    folder: Path, prefect: Sequence[str], environment: Mapping[str, str], has_pool: bool = False
) -> Iterator[Operator]:
    """All deployments deployed from `folder`, by the commands of the README."""
    pool = ["work-pool", "create", "holdfast", "--type", "process", "--overwrite"]
    deploy = ["deploy", "--all", "--prefect-file", str(ROOT / "deployments/prefect.yaml")]
    for command in [deploy] if has_pool else [pool, deploy]:
        given = {**environment, **PATIENT}
        result = subprocess.run([*prefect, *command], cwd=folder, env=given, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
    with at_the_server(folder, environment) as operator:
        yield operator


@contextmanager
def at_the_server(folder: Path, environment: Mapping[str, str]) -> Iterator[Operator]:
    """Somebody in `folder` who has deployed nothing yet."""
    with httpx.Client(base_url=environment["PREFECT_API_URL"], trust_env=False, timeout=ANSWER_SECONDS) as api:
        yield Operator(api, folder, folder / "worker.log")


@contextmanager
def working(
    operator: Operator,
    prefect: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    query_seconds: int = 1,
    most_flow_runs: int | None = 2,
) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker in `folder`, which asks for flow runs so often; schedules rest, lest a tick falls in."""
    for deployment in ("scheduled/train", "scrub/scrub"):
        operator.rest(deployment)
    limit = [] if most_flow_runs is None else ["--limit", str(most_flow_runs)]
    command = [*prefect, *WORKER, *limit]
    asking = {"PREFECT_WORKER_QUERY_SECONDS": str(query_seconds)}
    with running(command, {**environment, **asking}, operator.worker_log, folder) as worker:
        yield worker


def processes_of(flow_run: str) -> list[int]:
    """The process of a flow run, then all that it started: Prefect names it to them in their environment."""
    found = psutil.process_iter(["environ", "create_time"])
    own = [process for process in found if flow_run in (process.info["environ"] or {}).values()]
    return [process.pid for process in sorted(own, key=lambda process: process.info["create_time"])]


def kill_all(pids: Iterable[int]) -> None:
    """SIGKILL them."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # an agent ends by itself when its ranks are gone
            os.kill(pid, signal.SIGKILL)
