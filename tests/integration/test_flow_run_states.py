"""What a process learns of its own flow run from a real Prefect server, and says of it: whether somebody cancels it,

begins it again in another process, or calls it ended though it goes on.
"""

import uuid

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelled, Cancelling, Crashed, Scheduled

from tasks.telling.flow_runs import call_running, find_line, is_called_over, is_cancelled, is_to_begin
from tests.helpers.prefect_server import find_free_port

pytestmark = pytest.mark.server


@flow
def inner(outer: str, cancelled: str) -> tuple[bool, bool]:
    """Cancels itself, the flow run within which it runs, or none; whether it sees that before and after."""
    before, which = is_cancelled(find_line()), {"inner": str(flow_run.id), "outer": outer}.get(cancelled)
    if which is not None:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(uuid.UUID(which), Cancelling(), force=True)
    return before, is_cancelled(find_line())


@pytest.mark.parametrize("cancelled", ["inner", "outer", "neither"])
def test_a_flow_run_sees_that_it_or_the_one_around_it_is_cancelled(
    cancelled: str, prefect_server: dict[str, str]
) -> None:
    seen: list[tuple[bool, bool]] = []

    @flow
    def outer() -> None:
        seen.append(inner(str(flow_run.id), cancelled))

    with temporary_settings({PREFECT_API_URL: prefect_server["PREFECT_API_URL"]}):
        outer()
    assert seen == [(False, cancelled != "neither")]


def test_a_server_that_is_away_cancels_nothing(prefect_server: dict[str, str]) -> None:
    @flow
    def away() -> bool:
        with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{find_free_port()}/api"}):
            return is_cancelled(find_line())

    with temporary_settings({PREFECT_API_URL: prefect_server["PREFECT_API_URL"]}):
        assert away() is False


@pytest.mark.parametrize(("called", "is_put_right"), [(Crashed(), True), (Cancelled(), False)])
def test_a_flow_run_that_goes_on_is_called_running_again_unless_somebody_cancelled_it(
    called: State, is_put_right: bool, prefect_server: dict[str, str]
) -> None:
    @flow
    def goes_on() -> tuple[bool, list[str]]:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(uuid.UUID(str(flow_run.id)), called, force=True)
        line = find_line()
        call_running(line, "It trains on.")
        return is_called_over(line), [str(one.state.name) for one in find_line() if one.state is not None]

    with temporary_settings({PREFECT_API_URL: prefect_server["PREFECT_API_URL"]}):
        assert goes_on() == (is_put_right, ["Running" if is_put_right else "Cancelled"])


def test_a_flow_run_of_no_deployment_is_not_begun_again_by_a_worker(prefect_server: dict[str, str]) -> None:
    @flow
    def scheduled_by_force() -> bool:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(uuid.UUID(str(flow_run.id)), Scheduled(), force=True)
        return is_to_begin(find_line())

    with temporary_settings({PREFECT_API_URL: prefect_server["PREFECT_API_URL"]}):
        assert scheduled_by_force() is False
