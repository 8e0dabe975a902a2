"""What a flow and a step came to is known whatever Prefect's server answers, and no default of a site repeats them."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import OrchestrationResult
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterParentFlowRunId
from prefect.settings import PREFECT_API_URL, PREFECT_TASKS_DEFAULT_RETRIES, temporary_settings

from flows import deployed
from flows import train as trains
from flows.scheduled import scheduled
from storage.errors import ConfigurationError, RunBusyError, RunStoppedError
from storage.objects.local_store import LocalStore
from storage.runs.run_state import RunState
from tasks.configuration.run import DataConfig, RunConfig
from tasks.console.announce import Trouble
from tasks.step import step
from tests.helpers.operators import CONFIGURATION
from tests.helpers.runs import make_run

pytestmark = pytest.mark.server

FINAL = ("COMPLETED", "CANCELLED", "FAILED", "CRASHED")
CONFIG = RunConfig(run="run", data=DataConfig(text="t", label="l", kind="binary"))


@pytest.fixture
def server(prefect_server: dict[str, str]) -> Iterator[None]:
    with temporary_settings({PREFECT_API_URL: prefect_server["PREFECT_API_URL"]}):
        yield


@pytest.fixture
def asked_twice(server: None, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the server says of final states when it is asked again, as by a client whose first answer came too late."""
    answers: list[dict[str, Any]] = []
    send = httpx.Client.send

    def send_twice(client: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        response = send(client, request, **options)
        if request.url.path.endswith("/set_state") and response.json()["state"]["type"] in FINAL:
            response = send(client, request, **options)
            answers.append(response.json())
        return response

    monkeypatch.setattr(httpx.Client, "send", send_twice)
    return answers


@pytest.fixture
def state(tmp_path: Any) -> RunState:
    return make_run(LocalStore(tmp_path)).load_head().state


def test_where_a_run_stands_is_known_though_the_state_comes_back_without_it(
    state: RunState, asked_twice: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trains, "_train", lambda _config, _max_segments: state)
    assert trains.train_with_retries(CONFIG) == state
    (answer,) = asked_twice
    assert (answer["status"], answer["state"]["name"], answer["state"]["data"]) == ("REJECT", "Completed", None)


@pytest.mark.parametrize(
    "error", [RunStoppedError("stopped"), RunBusyError("busy"), ConfigurationError("wrong")], ids=lambda e: str(e)
)
def test_so_is_what_ended_it(
    error: Exception, asked_twice: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[RunConfig] = []

    def end(config: RunConfig, _max_segments: int | None) -> None:
        tries.append(config)
        raise error

    monkeypatch.setattr(trains, "_train", end)
    with pytest.raises(type(error), match=str(error)):
        trains.train_with_retries(CONFIG)
    assert asked_twice and len(tries) == 1


def test_what_is_deployed_ends_as_cancelled_where_somebody_asked_for_its_end_and_so_does_what_is_below(
    server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(_config: RunConfig, _max_segments: int | None) -> None:
        raise RunStoppedError("ann asked for the end of training")

    monkeypatch.setattr(trains, "_train", end)
    monkeypatch.setattr(deployed, "keeping_agent", lambda *_, **__: nullcontext())  # nothing is trained
    (tmp_path / "run.toml").write_text(CONFIGURATION)
    ended = scheduled(str(tmp_path / "run.toml"), return_state=True)
    flow_run_id = ended.state_details.flow_run_id
    assert flow_run_id is not None
    with get_client(sync_client=True) as client:
        flow_run = client.read_flow_run(flow_run_id)
        below = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[flow_run.id]))
        (training,) = client.read_flow_runs(flow_run_filter=below)
    for one in (flow_run, training):
        assert one.state is not None and one.state.is_cancelled()
        assert one.state.message == "ann asked for the end of training"


def test_a_server_that_takes_no_final_state_does_not_change_how_training_ended(
    state: RunState, server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = SyncPrefectClient.set_flow_run_state

    def fail(client: SyncPrefectClient, flow_run_id: Any, state: Any, **options: Any) -> OrchestrationResult[Any]:
        if state.is_final():
            raise OSError("the server is away")
        return ask(client, flow_run_id, state, **options)

    monkeypatch.setattr(trains, "_train", lambda _config, _max_segments: state)
    monkeypatch.setattr(SyncPrefectClient, "set_flow_run_state", fail)
    assert trains.train_with_retries(CONFIG) == state


def test_a_default_of_a_site_does_not_repeat_a_step_that_met_trouble(server: None) -> None:
    calls: list[str] = []

    with temporary_settings({PREFECT_TASKS_DEFAULT_RETRIES: 2}):

        @step("meet trouble")
        def meet_trouble() -> tuple[str, str]:
            calls.append("called")
            return "value", Trouble("It went wrong.")

        @flow
        def work() -> str:
            return meet_trouble()

        assert work() == "value"
    assert calls == ["called"]
