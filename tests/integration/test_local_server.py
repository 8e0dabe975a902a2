"""The Prefect server that `holdfast run` starts for itself."""

import signal
import time
from pathlib import Path

import httpx
import psutil
import pytest

from flows.server import configured_server
from tests.helpers.prefect_server import put_empty_database

pytestmark = pytest.mark.server

WAIT_SECONDS = 120.0


def find_child() -> psutil.Process:
    (server,) = [child for child in psutil.Process().children() if "uvicorn" in " ".join(child.cmdline())]
    return server


def answers(api: str) -> bool:
    try:
        return httpx.get(f"{api}/health", trust_env=False, timeout=5).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def test_a_local_server_that_dies_is_started_again_where_it_was_and_ends_with_its_block(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put_empty_database(tmp_path)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    with configured_server() as server:
        assert server is not None
        server.wait()
        first = find_child()
        first.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + WAIT_SECONDS
        while not answers(server.api_url):
            assert time.monotonic() < deadline
            time.sleep(0.1)  # it tells nobody when it begins to listen
        second = find_child()
        assert second.pid != first.pid
    assert not second.is_running()
