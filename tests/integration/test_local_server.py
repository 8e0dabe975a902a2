"""The Prefect server that `holdfast run` starts for itself."""

import signal
import time
from pathlib import Path

import httpx
import psutil
import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.prefect_server import configured_server
from tests.helpers.commands import find_children
from tests.helpers.prefect_server import find_free_port

pytestmark = pytest.mark.server

WAIT_SECONDS = 120.0


def find_child() -> psutil.Process:
    (server,) = find_children("uvicorn")
    return server


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def test_it_leaves_the_users_database_alone_asks_no_proxy_starts_again_where_it_was_and_ends_with_its_block(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    of_another_version = tmp_path / "prefect.db"
    of_another_version.write_bytes(b"tables of a newer Prefect")
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{find_free_port()}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "example.org")
    with configured_server() as command_server:
        command_server.wait()
        server = command_server.local
        assert server is not None
        with temporary_settings({PREFECT_API_URL: server.api_url}), get_client(sync_client=True) as client:
            assert client.api_healthcheck() is None
            assert client.read_flows() == []
        first = find_child()
        first.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + WAIT_SECONDS
        with httpx.Client(base_url=server.api_url, trust_env=False, timeout=5) as health:
            while not answers(health):
                assert time.monotonic() < deadline
                time.sleep(0.1)  # it does not signal that it listens
        second = find_child()
        assert second.pid != first.pid
    assert not second.is_running()
    assert of_another_version.read_bytes() == b"tables of a newer Prefect"
    assert sorted(tmp_path.iterdir()) == [of_another_version]
