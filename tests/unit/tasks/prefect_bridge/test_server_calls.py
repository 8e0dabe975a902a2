"""What Prefect's server is told by calls: keys that no two names share, and nothing that fails without a server."""

import json
import re
import socket
import ssl
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import trustme
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.settings import PREFECT_API_SSL_CERT_FILE, PREFECT_API_URL, temporary_settings

from tasks.prefect_bridge import server
from tasks.prefect_bridge.server import artifact_key, send_all, show, show_if_new
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
        send_all("The last word.", patience_seconds=0.1)
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
            assert [artifact.key for artifact in server._unsent] == ["report-demo"]
        finally:
            server._unsent.clear()
    assert f"an artifact is sent when this flow ends: {'timed out' if hangs else ''}" in caplog.text


def test_what_a_server_cannot_take_at_first_is_told_before_the_flow_ends(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "POLL_SECONDS", 0.01)
    # Its database is busy; it does not want the first one at all; its database is busy again.
    answers, taken = [503, 422, 503, 503, 201], list[str]()
    in_a_flow = FlowRunContext.model_construct(flow_run=FlowRun(id=uuid.uuid4(), flow_id=uuid.uuid4()))  # type: ignore[call-arg]
    with answering(answers, taken) as address, in_a_flow, temporary_settings({PREFECT_API_URL: address}):
        try:
            show("report-first", "# first")
            assert [artifact.key for artifact in server._unsent] == ["report-first"]
            show("report-second", "# second")
            assert [artifact.key for artifact in server._unsent] == ["report-second"]
            send_all(patience_seconds=30)
            assert not server._unsent
        finally:
            server._unsent.clear()
    assert taken == ["report-second"]
    assert answers == []
    assert "refused an artifact" in caplog.text
    assert "did not come back" not in caplog.text


def test_what_the_newest_artifact_of_a_name_shows_is_not_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "POLL_SECONDS", 0.01)
    # Asked what it shows, and then to take an artifact, its database is busy; later it is not.
    answers, taken, shown = [201, 201, 503, 503, 201], list[str](), list[dict[str, Any]]()
    in_a_flow = FlowRunContext.model_construct(flow_run=FlowRun(id=uuid.uuid4(), flow_id=uuid.uuid4()))  # type: ignore[call-arg]
    with answering(answers, taken, shown) as address, in_a_flow, temporary_settings({PREFECT_API_URL: address}):
        try:
            for text in ("# demo", "# demo", "# another", "# another"):
                show_if_new("report-demo", text)
            assert [artifact["data"] for artifact in shown] == ["# demo", "# another"]
            shown.clear()  # who asks now is told that the server is busy
            show_if_new("report-demo", "# another")
            assert [artifact.key for artifact in server._unsent] == ["report-demo"]
            send_all(patience_seconds=30)
        finally:
            server._unsent.clear()
    assert taken == ["report-demo"] * 3 and answers == []


@contextmanager
def answering(answers: list[int], taken: list[str], shown: list[dict[str, Any]] | None = None) -> Iterator[str]:
    """A server that is healthy, and answers requests for an artifact with these, one after the other.

    What it has taken it appends to `shown`; asked for the newest, it answers with the last of these.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200 if self.path == "/api/health" else 404, True)

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path.endswith("/latest/filter") and (shown or len(taken) == 0):
                self._answer(200, (shown or [])[-1:])
                return
            status = answers.pop(0)
            if status == 201:
                taken.append(asked["key"])
                if shown is not None:
                    shown.append(asked | {"id": str(uuid.uuid4()), "latest_id": str(uuid.uuid4())})
            self._answer(status, asked | {"id": str(uuid.uuid4())})

        def _answer(self, status: int, content: object) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}/api"
        listening.shutdown()


def test_certificates_are_read_once_and_again_when_their_file_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, files = ssl.create_default_context, list[Any]()

    def create(*arguments: Any, **named: Any) -> ssl.SSLContext:
        files.append(named.get("cafile"))
        return make(*arguments, **named)

    monkeypatch.setattr(ssl, "create_default_context", create)
    file = tmp_path / "authority.pem"
    with temporary_settings({PREFECT_API_URL: "https://127.0.0.1:1/api", PREFECT_API_SSL_CERT_FILE: str(file)}):
        for _ in range(2):
            trustme.CA().cert_pem.write_to_path(str(file))
            for _ in range(3):
                with server.impatient_client() as client:
                    pool = client._client._transport._pool  # type: ignore[attr-defined]
                    assert pool._ssl_context.cert_store_stats()["x509_ca"] == 1
    assert files == [file, file]
