"""The HTTP side of a Kubernetes cluster for tests: the paths, answers, refusals and watches of a real API server.

Invariant: it answers as https://kubernetes.io/docs/reference/using-api/api-concepts/ says, for JobSets and pods of one
namespace; what it does not serve is 404, never a made-up success.
"""

import base64
import hashlib
import json
import re
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from tests.helpers.kubernetes_objects import ForgottenError, Object, Objects, has_labels

TOKEN = "token-of-the-tests"
NAMESPACE = "research"
JOBSETS, PODS = "jobsets", "pods"
JOBSET_PATH = re.compile(r"^/apis/jobset\.x-k8s\.io/v1alpha2/namespaces/([^/]+)/(jobsets)(?:/([^/]+))?()$")
POD_PATH = re.compile(r"^/api/v1/namespaces/([^/]+)/(pods)(?:/([^/]+)(?:/(exec|eviction))?)?$")
VERBS = {"GET": "get", "POST": "create", "DELETE": "delete"}
WEBSOCKET_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
EXEC_PROTOCOL = "v4.channel.k8s.io"
ERROR_CHANNEL = 3
LONGEST_WATCH_SECONDS = 300.0


class Cluster(Protocol):
    """What the server asks of the cluster behind it, and how a test has it answer."""

    objects: Objects
    is_answering: bool
    is_overloaded: bool
    has_jobset: bool
    loses_next_answer: bool
    forbidden: set[str]
    refusal: str | None
    token: str

    def delete_pod(self, pod: Object, grace_seconds: float | None) -> None: ...

    def delete_jobset(self, name: str) -> None: ...

    def evict(self, pod: Object) -> None: ...

    def execute(self, pod: Object, command: list[str]) -> int: ...


class Refusal(Exception):  # noqa: N818  it is an answer
    """An answer that is no success: a `Status` with what a real server says, or a plain text."""

    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code, "details": details or {},
        }  # fmt: skip


def serve(cluster: Cluster) -> ThreadingHTTPServer:
    """A server on a port of its own, to be run with `serve_forever`."""
    handler = type("Handler", (_Handler,), {"cluster": cluster})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    return server


class _Handler(BaseHTTPRequestHandler):
    cluster: Cluster
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: tests ask the cluster."""

    def do_GET(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_DELETE(self) -> None:
        self._handle()

    def _handle(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if not self.cluster.is_answering:
            self.close_connection = True
            return
        try:
            self._serve(url.path, query, parse_qs(url.query), body)
        except Refusal as refusal:
            self._answer(refusal.code, refusal.status)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # who watched is gone

    def _serve(self, path: str, query: dict[str, str], lists: dict[str, list[str]], body: Object) -> None:
        if self.headers.get("Authorization") != f"Bearer {self.cluster.token}":
            raise Refusal(HTTPStatus.UNAUTHORIZED, "Unauthorized", "Unauthorized")
        if self.cluster.is_overloaded:
            said = "Too many requests, please try again later."
            raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, "TooManyRequests", said)
        found = JOBSET_PATH.match(path) or POD_PATH.match(path)
        if found is None or (found[2] == JOBSETS and not self.cluster.has_jobset):
            self._answer_text(HTTPStatus.NOT_FOUND, "404 page not found\n")
            return
        namespace, kind, name, part = found.groups()
        verb = VERBS[self.command]
        self._require_permission(f"{verb} {'/'.join(filter(None, [kind, part]))}")
        if part == "exec":
            self._execute(self._load(kind, name), lists["command"])
        elif part == "eviction":
            self.cluster.evict(self._load(kind, name))
            self._answer(HTTPStatus.CREATED, {"kind": "Status", "apiVersion": "v1", "status": "Success"})
        elif verb == "create":
            self._create(namespace, kind, body, query)
        elif verb == "delete":
            self._delete(kind, name, query, body)
        elif name is not None:
            self._answer(HTTPStatus.OK, self._load(kind, name))
        elif query.get("watch") in ("1", "true", "True"):
            self._watch(kind, query)
        else:
            self._list(kind, query)

    def _require_permission(self, request: str) -> None:
        if request in self.cluster.forbidden:
            verb, resource = request.split()
            raise Refusal(
                HTTPStatus.FORBIDDEN,
                "Forbidden",
                f'{resource} is forbidden: User "tests" cannot {verb} resource "{resource}" in the namespace '
                f'"{NAMESPACE}"',
            )

    def _load(self, kind: str, name: str) -> Object:
        found = self.cluster.objects.find(kind, name)
        if found is None:
            details = {"name": name, "kind": kind}
            raise Refusal(HTTPStatus.NOT_FOUND, "NotFound", f'{kind} "{name}" not found', details)
        return found

    def _create(self, namespace: str, kind: str, new: Object, query: dict[str, str]) -> None:
        name = new["metadata"]["name"]
        if namespace != NAMESPACE:
            details = {"name": namespace, "kind": "namespaces"}
            raise Refusal(HTTPStatus.NOT_FOUND, "NotFound", f'namespaces "{namespace}" not found', details)
        if self.cluster.refusal is not None:
            raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", self.cluster.refusal)
        if self.cluster.objects.find(kind, name) is not None:
            details = {"name": name, "kind": kind}
            raise Refusal(HTTPStatus.CONFLICT, "AlreadyExists", f'{kind} "{name}" already exists', details)
        if query.get("dryRun") != "All":
            new = self.cluster.objects.create(kind, new) or new
        if self.cluster.loses_next_answer:
            self.cluster.loses_next_answer = False
            self.close_connection = True
            return
        self._answer(HTTPStatus.CREATED, new)

    def _delete(self, kind: str, name: str | None, query: dict[str, str], body: Object) -> None:
        if name is None:
            grace = query.get("gracePeriodSeconds", body.get("gracePeriodSeconds"))
            for pod in self.cluster.objects.select(kind, _labels(query))[0]:
                self.cluster.delete_pod(pod, None if grace is None else float(grace))
            self._list(kind, query)
            return
        found = self._load(kind, name)
        policy = query.get("propagationPolicy", body.get("propagationPolicy"))
        if policy != "Foreground":
            raise Refusal(HTTPStatus.BAD_REQUEST, "BadRequest", f"these tests delete in the foreground, not {policy}")
        self.cluster.delete_jobset(name)
        self._answer(HTTPStatus.OK, found)

    def _list(self, kind: str, query: dict[str, str]) -> None:
        items, version = self.cluster.objects.select(kind, _labels(query))
        listed = {
            "kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": str(version)}, "items": items,
        }  # fmt: skip
        self._answer(HTTPStatus.OK, listed)

    def _watch(self, kind: str, query: dict[str, str]) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        after, labels = int(query["resourceVersion"]), _labels(query)
        deadline = time.monotonic() + float(query.get("timeoutSeconds", LONGEST_WATCH_SECONDS))
        while (remaining := deadline - time.monotonic()) > 0 and self.cluster.is_answering:
            try:
                events = self.cluster.objects.wait_for_events(kind, after, min(remaining, 1.0))
            except ForgottenError:
                gone = Refusal(HTTPStatus.GONE, "Expired", f"too old resource version: {after}").status
                self._write_chunk({"type": "ERROR", "object": gone})
                break
            for _, what, subject in events:
                if has_labels(subject, labels):
                    self._write_chunk({"type": what, "object": subject})
            after = max((version for version, _, _ in events), default=after)
        self.wfile.write(b"0\r\n\r\n")

    def _write_chunk(self, event: Object) -> None:
        line = json.dumps(event).encode() + b"\n"
        self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
        self.wfile.flush()

    def _execute(self, pod: Object, command: list[str]) -> None:
        """Over a WebSocket, as of RFC 6455: what the command says of its end, on the channel for that."""
        key = self.headers["Sec-WebSocket-Key"] + WEBSOCKET_GUID
        self.send_response(HTTPStatus.SWITCHING_PROTOCOLS)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.send_header("Sec-WebSocket-Protocol", EXEC_PROTOCOL)
        self.end_headers()
        code = self.cluster.execute(pod, command)
        failed = {"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]}}
        said = json.dumps({"status": "Success"} if code == 0 else failed).encode()
        payload = bytes([ERROR_CHANNEL]) + said
        assert len(payload) < 126
        self.wfile.write(bytes([0x82, len(payload)]) + payload + bytes([0x88, 2]) + (1000).to_bytes(2, "big"))
        self.close_connection = True

    def _answer(self, code: int, answer: Object) -> None:
        self._answer_text(code, json.dumps(answer), "application/json")

    def _answer_text(self, code: int, text: str, kind: str = "text/plain") -> None:
        data = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def timestamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _labels(query: dict[str, str]) -> dict[str, str]:
    """Of a selector that asks for equality alone."""
    return dict(part.split("=", 1) for part in query.get("labelSelector", "").split(",") if part)
