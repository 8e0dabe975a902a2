"""What Prefect's server is told by calls: keys that no two names share, and nothing that fails without a server."""

import re
import socket
import uuid

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks.telling import server
from tasks.telling.server import artifact_key, show, tell_all
from tests.helpers.prefect_server import find_free_port


def test_names_that_differ_have_keys_that_differ() -> None:
    names = ("report-a.b", "report-a-b", "report-A-b", "report-a_b", "report-ä-b")
    keys = [artifact_key(name) for name in names]
    assert len(set(keys)) == len(names)
    assert all(re.fullmatch("[a-z0-9-]+", key) for key in keys)


def test_a_name_that_is_a_key_already_stays_as_it_is() -> None:
    assert artifact_key("report-demo-2") == "report-demo-2"


def test_a_server_that_does_not_come_back_is_said_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{find_free_port()}/api"}):
        tell_all("The last word.", patience_seconds=0.1)
    first, last = (record.message for record in caplog.records if record.name == "holdfast")
    assert first.startswith("The last word. Prefect's server does not answer.")
    assert "did not come back" in last


@pytest.mark.parametrize("hangs", [False, True])
def test_an_artifact_that_the_server_cannot_take_now_is_kept_and_no_error(
    hangs: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CALL_SECONDS", 0.2)
    flow_run = FlowRun(id=uuid.uuid4(), flow_id=uuid.uuid4())
    in_a_flow = FlowRunContext.model_construct(flow_run=flow_run)  # type: ignore[call-arg]
    with socket.create_server(("127.0.0.1", 0)) as listening:  # takes a connection, and never answers
        port = listening.getsockname()[1] if hangs else find_free_port()
        try:
            with in_a_flow, temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{port}/api"}):
                show("report-demo", "# demo")
            assert [artifact.key for artifact in server._untold] == ["report-demo"]
        finally:
            server._untold.clear()
    assert f"an artifact is sent when this flow ends: {'timed out' if hangs else ''}" in caplog.text
