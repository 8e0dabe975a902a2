"""What a process learns of its own flow run from a real Prefect server: whether somebody cancels it."""

import uuid

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling

from tasks.telling.flow_runs import is_cancelled
from tests.helpers.prefect_server import find_free_port

pytestmark = pytest.mark.server


@flow
def inner(outer: str, cancelled: str) -> tuple[bool, bool]:
    """Cancels itself, the flow run within which it runs, or none; whether it sees that before and after."""
    before, which = is_cancelled(), {"inner": str(flow_run.id), "outer": outer}.get(cancelled)
    if which is not None:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(uuid.UUID(which), Cancelling(), force=True)
    return before, is_cancelled()


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
            return is_cancelled()

    with temporary_settings({PREFECT_API_URL: prefect_server["PREFECT_API_URL"]}):
        assert away() is False
