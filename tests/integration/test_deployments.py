"""The deployments on a real local server, their flow runs in a real worker: what an operator gets.

Holdfast is installed from its wheel, and the folders that are deployed from and worked in have packages `flows`,
`tasks`, ... of their own.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.run_state import RunState
from tasks.corpora.generate import generate_corpus
from tests.helpers.commands import ROOT, processes_mentioning
from tests.helpers.kept_runs import make_kept_run
from tests.helpers.prefect_server import ANSWER_SECONDS, running
from tests.helpers.wheels import build_wheel, install_wheel, without_python_path, write_own_packages

WAIT_SECONDS = 150.0
POLL_SECONDS = 0.5
ATTEMPTS = 20
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
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
leaves = 2

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

    def deployment(self, name: str) -> dict[str, Any]:
        """A deployment as the server knows it; its name is FLOW/DEPLOYMENT."""
        return dict(self._request("GET", f"/deployments/name/{name}"))

    def submit(self, name: str, **parameters: Any) -> str:
        """Ask for a flow run, as the form of the UI does."""
        url = f"/deployments/{self.deployment(name)['id']}/create_flow_run"
        return str(self._request("POST", url, json={"parameters": parameters})["id"])

    def pause(self, deployment: str, schedule: str) -> None:
        """Pause one schedule of a deployment."""
        self._request("PATCH", f"/deployments/{deployment}/schedules/{schedule}", json={"active": False})

    def run(self, name: str, **parameters: Any) -> dict[str, Any]:
        """Ask for a flow run and wait for its final state."""
        flow_run = self.submit(name, **parameters)
        self.wait(lambda: self.states(flow_run)[-1]["type"] in ENDED)
        return dict(self._request("GET", f"/flow_runs/{flow_run}"))

    def cancel(self, flow_run: str) -> None:
        """Press Cancel."""
        state = {"type": "CANCELLING", "name": "Cancelling"}
        self._request("POST", f"/flow_runs/{flow_run}/set_state", json={"state": state})

    def states(self, flow_run: str) -> list[dict[str, Any]]:
        """All states that a flow run has been in, the oldest first."""
        found = self._request("GET", "/flow_run_states/", params={"flow_run_id": flow_run})
        return sorted(found, key=lambda state: state["timestamp"])

    def find_training(self, flow_run: str) -> str:
        """The run of the flow `train` that a deployed flow made."""
        parents = {"flow_runs": {"parent_flow_run_id": {"any_": [flow_run]}}}
        (found,) = self._request("POST", "/flow_runs/filter", json=parents)
        return str(found["id"])

    def events(self, name: str, resource: str) -> list[dict[str, Any]]:
        """The events of this name, about this, that the server has heard of."""
        wanted = {"event": {"name": [name]}, "resource": {"id": [resource]}}
        return list(self._request("POST", "/events/filter", json={"filter": wanted})["events"])

    def scheduled_times(self, name: str) -> list[datetime]:
        """When the flow runs begin that the server itself has planned."""
        planned = {
            "deployments": {"id": {"any_": [self.deployment(name)["id"]]}},
            "flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}},
        }
        found = self._request("POST", "/flow_runs/filter", json=planned)
        return sorted(datetime.fromisoformat(run["expected_start_time"]) for run in found if run["auto_scheduled"])

    def state(self) -> RunState:
        """Where the run stands, by its manifest."""
        return Manifest(LocalStore(self.folder / "store"), "tiny").load_head().state

    def segment_has_saved(self, number: int) -> bool:
        """Whether this segment of the run is the one in training, and a checkpoint of its own is promoted."""
        segments, promoted = (state := self.state()).segments, state.promoted
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

    def _request(self, method: str, url: str, **content: Any) -> Any:
        """The server says 503 while its database is locked; Prefect's own clients ask again too."""
        for _ in range(ATTEMPTS):
            response = self.api.request(method, url, **content)
            if response.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                break
            time.sleep(POLL_SECONDS)  # until the lock is gone
        assert response.is_success, response.text
        return response.json() if response.content else None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an operator deploys from: a configuration file and, relative to it, data and store."""
    folder = tmp_path_factory.mktemp("operator")
    (folder / "tiny.toml").write_text(CONFIGURATION)
    generate_corpus(folder / "corpus", "policy", 600)
    write_own_packages(folder)
    return folder


@pytest.fixture(scope="module")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command `prefect` where the wheel is installed. With `-m` the current folder is the first to be searched."""
    programs = install_wheel(build_wheel(tmp_path_factory.mktemp("wheel")), tmp_path_factory.mktemp("environment"))
    return [str(programs / "python"), "-m", "prefect", "--no-prompt"]


@pytest.fixture(scope="module")
def environment(prefect_server: dict[str, str]) -> dict[str, str]:
    return without_python_path(prefect_server)


@pytest.fixture(scope="module")
def operator(folder: Path, prefect: list[str], environment: dict[str, str]) -> Iterator[Operator]:
    """All deployments deployed, by the commands of the README."""
    for command in (
        ["work-pool", "create", "holdfast", "--type", "process"],
        ["deploy", "--all", "--prefect-file", str(ROOT / "deployments/prefect.yaml")],
    ):
        result = subprocess.run([*prefect, *command], cwd=folder, env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
    with httpx.Client(base_url=environment["PREFECT_API_URL"], trust_env=False, timeout=ANSWER_SECONDS) as api:
        yield Operator(api, folder, folder / "worker.log")


@pytest.fixture(scope="module")
def worked(operator: Operator, prefect: list[str], environment: dict[str, str]) -> Iterator[Operator]:
    """A worker is there, in another folder than the one deployed from; schedules rest, lest a tick falls in."""
    for deployment in (operator.deployment("scheduled/train"), operator.deployment("scrub/scrub")):
        for schedule in deployment["schedules"]:
            operator.pause(deployment["id"], schedule["id"])
    command = [*prefect, "worker", "start", "--pool", "holdfast", "--type", "process", "--limit", "2"]
    elsewhere = operator.folder / "elsewhere"
    write_own_packages(elsewhere)
    with running(command, environment | {"PREFECT_WORKER_QUERY_SECONDS": "1"}, operator.worker_log, elsewhere):
        yield operator


@pytest.fixture(scope="module")
def cancelled(worked: Operator) -> str:
    """A flow run whose ranks were killed at once, then when they had got on, and that was then cancelled."""
    flow_run = worked.submit("scheduled/train", configuration="tiny.toml")
    ranks = str(worked.folder / "store/.tmp/scratch/runs/tiny")
    worked.wait(lambda: bool(processes_mentioning(ranks)))
    kill_all(ranks)
    worked.wait(lambda: worked.segment_has_saved(2))
    kill_all(ranks)
    worked.wait(lambda: worked.segment_has_saved(3))
    worked.cancel(flow_run)
    worked.wait(lambda: worked.states(flow_run)[-1]["type"] in ENDED)
    return flow_run


def test_all_are_deployed_to_the_pool_without_a_limit_whose_loss_would_end_training(operator: Operator) -> None:
    for name in ("scheduled/train", "resume/resume", "scrub/scrub"):
        deployment = operator.deployment(name)
        assert deployment["work_pool_name"] == "holdfast"
        assert deployment["global_concurrency_limit"] is None
        assert deployment["job_variables"]["env"]["PREFECT_LOGGING_EXTRA_LOGGERS"] == "holdfast"
        (step,) = deployment["pull_steps"]
        assert step == {"prefect.deployments.steps.set_working_directory": {"directory": str(operator.folder)}}


def test_train_is_on_a_schedule_that_leaves_room_for_its_time_budget(operator: Operator) -> None:
    deployment = operator.deployment("scheduled/train")
    (schedule,) = deployment["schedules"]
    assert schedule["schedule"]["cron"] == "*/15 * * * *"
    assert deployment["parameters"]["segment_seconds"] < 15 * 60
    assert (ROOT / deployment["parameters"]["configuration"]).is_file()
    assert operator.deployment("resume/resume")["schedules"] == []


def test_what_is_kept_is_scrubbed_every_night(operator: Operator) -> None:
    (schedule,) = operator.deployment("scrub/scrub")["schedules"]
    assert schedule["active"] and schedule["schedule"]["cron"] == "0 3 * * *"


def test_the_server_plans_the_flow_runs_of_the_schedule(operator: Operator) -> None:
    operator.wait(lambda: len(operator.scheduled_times("scheduled/train")) >= 3)
    first, second, third = operator.scheduled_times("scheduled/train")[:3]
    assert first.minute % 15 == 0
    assert second - first == third - second == timedelta(minutes=15)


def test_the_forms_ask_for_little_and_explain_each_field(operator: Operator) -> None:
    train, resume, scrub = (
        operator.deployment(name)["parameter_openapi_schema"]
        for name in ("scheduled/train", "resume/resume", "scrub/scrub")
    )
    assert list(train["properties"]) == ["configuration", "segment_seconds", "assignments"]
    assert train["required"] == ["configuration"]
    assert list(resume["properties"]) == ["store", "run", "segment_seconds", "steps", "ranks"]
    assert resume["required"] == ["store", "run"]
    assert list(scrub["properties"]) == ["address", "megabytes_per_second"]
    assert scrub["required"] == ["address"]
    fields = [field for form in (train, resume, scrub) for field in form["properties"].values()]
    assert all(field["description"] for field in fields)
    assert resume["properties"]["steps"]["anyOf"] == [{"minimum": 1, "type": "integer"}, {"type": "null"}]


def test_a_wrong_value_is_refused_by_the_form(operator: Operator) -> None:
    url = f"/deployments/{operator.deployment('resume/resume')['id']}/create_flow_run"
    response = operator.api.post(url, json={"parameters": {"store": "store", "run": "tiny", "steps": 0}})
    assert response.status_code == 409
    assert "steps" in response.text


def test_a_segment_killed_at_once_is_tried_again_and_one_that_had_got_on_is_followed_by_the_next(
    worked: Operator, cancelled: str
) -> None:
    at_once, later, followed = worked.state().segments[:3]
    assert (at_once.outcome, later.outcome, followed.outcome) == ("lost", "lost", "preempted")
    assert at_once.last_step == later.first_step == 0
    assert 0 < followed.first_step < followed.last_step
    names = [state["name"] for state in worked.states(worked.find_training(cancelled))]
    assert names[:4] == ["Pending", "Running", "AwaitingRetry", "Running"]
    assert names.count("AwaitingRetry") == 1


def test_a_cancelled_flow_run_saves_and_ends_as_cancelled_and_the_next_one_goes_on(
    worked: Operator, cancelled: str
) -> None:
    for name in (cancelled, worked.find_training(cancelled)):
        assert worked.states(name)[-1]["type"] == "CANCELLED", worked.worker_log.read_text()
    state = worked.state()
    segment = state.segments[2]
    assert (segment.outcome, segment.cause, segment.steps_lost) == ("preempted", "asked to stop by a signal", 0)
    assert state.lease is None and state.promoted is not None and state.promoted.step == segment.last_step


@pytest.mark.usefixtures("cancelled")
def test_train_stops_at_its_time_budget_and_resume_goes_on_to_the_end(worked: Operator) -> None:
    before = worked.state()
    first = worked.run("scheduled/train", configuration="tiny.toml", segment_seconds=2)
    assert first["state"]["type"] == "COMPLETED", worked.worker_log.read_text()
    state = worked.state()
    assert before.promoted is not None and state.promoted is not None
    assert [segment.outcome for segment in state.segments[len(before.segments) :]] == ["budget"]
    assert state.segments[-1].first_step == before.promoted.step < state.promoted.step < ENDLESS
    assert (state.segments[-1].last_step, state.segments[-1].steps_lost) == (state.promoted.step, 0)
    assert first["state"]["message"] == f"tiny: budget, step {state.promoted.step:,} of {ENDLESS:,}"

    steps = state.promoted.step + 40
    second = worked.run("resume/resume", store="store", run="tiny", steps=steps)
    assert second["state"]["type"] == "COMPLETED", worked.worker_log.read_text()
    ended = worked.state()
    assert [segment.outcome for segment in ended.segments[len(before.segments) :]] == ["budget", "completed"]
    assert ended.segments[-1].first_step == state.promoted.step
    assert ended.is_complete
    assert second["state"]["message"] == f"tiny: completed, step {steps:,} of {steps:,}"

    tick = worked.run("scheduled/train", configuration="tiny.toml", assignments=[f"train.steps={steps}"])
    assert tick["state"]["type"] == "COMPLETED", worked.worker_log.read_text()
    assert worked.state().segments == ended.segments


def test_what_a_person_has_to_put_right_is_not_tried_again(worked: Operator) -> None:
    assignments = ["run=hopeless", "data.label=no_such_column"]
    failed = worked.run("scheduled/train", configuration="tiny.toml", assignments=assignments)
    assert failed["state"]["type"] == "FAILED"
    assert "no_such_column" in failed["state"]["message"]
    names = [state["name"] for state in worked.states(worked.find_training(failed["id"]))]
    assert names == ["Pending", "Running", "Failed"]


def test_a_scrub_that_finds_rot_fails_and_tells_the_server(worked: Operator, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "kept")
    newest = make_kept_run(store, tmp_path).load_head().state.kept[0]
    model = store.root / newest.path / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1])
    failed = worked.run("scrub/scrub", address=store.address)
    assert failed["state"]["type"] == "FAILED"
    assert f"{newest.path}/model.safetensors was changed" in failed["state"]["message"]
    rotten = f"holdfast.{store.address}/{newest.path}"
    worked.wait(lambda: bool(worked.events("holdfast.rot", rotten)))
    (event,) = worked.events("holdfast.rot", rotten)
    assert event["payload"].items() >= {"run": "run", "kind": "checkpoint", "step": 30, "is_set_aside": True}.items()
    assert f"prefect.flow-run.{failed['id']}" in [related["prefect.resource.id"] for related in event["related"]]


def kill_all(text: str) -> None:
    """SIGKILL every process whose command line names this."""
    for pid in processes_mentioning(text):
        with contextlib.suppress(ProcessLookupError):  # torchrun ends by itself when its ranks are gone
            os.kill(pid, signal.SIGKILL)
