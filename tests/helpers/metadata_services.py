"""The metadata services of AWS, GCP and Azure as one HTTP server: their paths, headers, refusals and payloads.

What they say is set by a test at any time. Whoever does not ask as the cloud's documents say is refused as they say.
"""

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

MACHINE = "worker_3"
AWS = "/latest/meta-data"
GCP = "/computeMetadata/v1/instance"
AZURE = "/metadata"
# AWS grants a session at least a second and at most six hours.
TOKEN_SECONDS = range(1, 21_601)


class MetadataServices:
    """What each service has to say, what it was asked, and whether it answers at all."""

    def __init__(self, port: int = 0) -> None:
        self.aws: dict[str, Any] = {}  # by path; what is not there is 404
        self.gcp = {f"{GCP}/preempted": "FALSE", f"{GCP}/maintenance-event": "NONE"}
        self.azure_events: list[dict[str, Any]] = []
        self.tokens: list[str] = []
        self.num_tokens_given = 0
        self.garbled = False
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.is_asked = threading.Event()
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.services = self
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def interrupt_spot_instance(self, seconds: float = 120, action: str = "terminate") -> None:
        self.aws[f"{AWS}/spot/instance-action"] = {"action": action, "time": _iso(seconds)}

    def recommend_rebalance(self) -> None:
        self.aws[f"{AWS}/events/recommendations/rebalance"] = {"noticeTime": _iso(0)}

    def preempt(self) -> None:
        self.gcp[f"{GCP}/preempted"] = "TRUE"

    def maintain(self, event: str) -> None:
        self.gcp[f"{GCP}/maintenance-event"] = event

    def schedule(self, kind: str, *machines: str, seconds: float | None = 30) -> None:
        """An event of Azure's; without seconds it has begun."""
        at = "" if seconds is None else format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)
        self.azure_events.append(
            {
                "EventId": secrets.token_hex(8).upper(),
                "EventStatus": "Started" if seconds is None else "Scheduled",
                "EventType": kind,
                "ResourceType": "VirtualMachine",
                "Resources": list(machines or (MACHINE,)),
                "NotBefore": at,
                "Description": "",
                "EventSource": "Platform",
                "DurationInSeconds": -1,
            }
        )

    def answer(self, method: str, path: str, headers: Any) -> tuple[int, str]:
        self.is_asked.set()
        self.may_answer.wait()
        if self.garbled:
            return 200, "<html>log in to this network</html>"
        if path.startswith("/latest/"):
            return self._answer_aws(method, path, headers)
        if path.startswith(GCP):
            return self._answer_gcp(path, headers)
        return self._answer_azure(path, headers)

    def _answer_aws(self, method: str, path: str, headers: Any) -> tuple[int, str]:
        if path == "/latest/api/token":
            if method != "PUT" or int(headers.get("X-aws-ec2-metadata-token-ttl-seconds", 0)) not in TOKEN_SECONDS:
                return 400, ""
            self.num_tokens_given += 1
            self.tokens.append(secrets.token_urlsafe(40))
            return 200, self.tokens[-1]
        if headers.get("X-aws-ec2-metadata-token") not in self.tokens:
            return 401, ""
        return (200, json.dumps(self.aws[path])) if path in self.aws else (404, "")

    def _answer_gcp(self, path: str, headers: Any) -> tuple[int, str]:
        if headers.get("Metadata-Flavor") != "Google":
            return 403, "Missing required header: Metadata-Flavor"
        return (200, self.gcp[path]) if path in self.gcp else (404, "")

    def _answer_azure(self, path: str, headers: Any) -> tuple[int, str]:
        parts = urlsplit(path)
        if headers.get("Metadata", "").lower() != "true" or "api-version" not in parse_qs(parts.query):
            return 400, json.dumps({"error": "Bad request. Required metadata header not specified"})
        if parts.path == f"{AZURE}/instance/compute/name":
            return 200, MACHINE
        if parts.path == f"{AZURE}/scheduledevents":
            return 200, json.dumps({"DocumentIncarnation": len(self.azure_events), "Events": self.azure_events})
        return 404, ""


@contextmanager
def running_metadata_services(port: int = 0) -> Iterator[MetadataServices]:
    services = MetadataServices(port)
    try:
        yield services
    finally:
        services.close()


class _Server(ThreadingHTTPServer):
    services: MetadataServices
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked has given up waiting."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        status, text = self.server.services.answer(self.command, self.path, self.headers)
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_PUT = do_GET  # noqa: N815 - http.server calls it so

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _iso(seconds: float) -> str:
    return f"{datetime.now(UTC) + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"
