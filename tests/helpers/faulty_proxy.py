"""An HTTP proxy before an S3 server that fails as a network does, when and as often as it is told.

Invariant: a fault counts how often it took place, so that a test can show that it did.
"""

import http.client
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


class Failure(Enum):
    """What becomes of a request."""

    SLOW_DOWN = auto()  # 503, and the server never saw it
    CONFLICT = auto()  # 409, and the server never saw it
    RESET = auto()  # the connection breaks, and the server never saw it
    REPLY_LOST = auto()  # the server did it, and the connection breaks
    REPLY_IS_ERROR = auto()  # the server did it, and the answer is 500
    HANG = auto()  # the server did it, and no answer comes, however long one waits
    CUT = auto()  # half of the answer's body, and the connection breaks
    SHORT = auto()  # half of the answer's body, and the connection ends
    CLOSED = auto()  # the answer, and the connection ends, of which nothing was said
    REFUSED = auto()  # 403, and the server never saw it
    KEY_REFUSED = auto()  # 403 with the name for a key that is unknown, and the server never saw it
    NOT_FOUND = auto()  # 404 with a proxy's page, and the server never saw it
    STRUCK_BEFORE = auto()  # `FaultyProxy.strike` is called, and the server never saw it
    STRUCK_AFTER = auto()  # the server did it, and `FaultyProxy.strike` is called


@dataclass
class Fault:
    """Fails the next `times` requests of this method, "" is any, whose path and query contain `part`."""

    failure: Failure
    method: str
    part: str = ""
    times: int = 1
    fired: int = 0

    def takes(self, method: str, path: str) -> bool:
        return self.fired < self.times and self.method in ("", method) and self.part in path


@dataclass
class Outage(Fault):
    """From the first request that it takes on every request fails, until somebody says that `is_over`."""

    is_over: bool = False

    def takes(self, method: str, path: str) -> bool:
        return not self.is_over and (self.fired > 0 or super().takes(method, path))


class FaultyProxy:
    """Where it listens, what is to fail, and what passed through it: method and path, also of what failed."""

    def __init__(self, upstream: str) -> None:
        self.upstream = urlsplit(upstream).netloc
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.lock = threading.Lock()
        self.endpoint = ""
        # Ids of keys: who signs with one of them gets 403, and the server never sees it.
        self.refused_keys: set[str] = set()
        self.strike: Callable[[], object] = lambda: None

    def fail(self, failure: Failure, method: str, part: str = "", times: int = 1) -> Fault:
        """Have requests fail from now on."""
        fault = Fault(failure, method, part, times)
        self.faults.append(fault)
        return fault

    def go_away(self, method: str, part: str) -> Outage:
        """Be gone from the next request of this method on whose path and query contain `part`."""
        outage = Outage(Failure.RESET, method, part)
        self.faults.append(outage)
        return outage

    def take(self, method: str, path: str, headers: dict[str, str]) -> Failure | None:
        """What is to become of a request."""
        with self.lock:
            self.requests.append((method, path))
            self.headers.append(headers)
            if any(f"Credential={key}" in f"{path} {headers.get('Authorization')}" for key in self.refused_keys):
                return Failure.KEY_REFUSED
            fault = next((fault for fault in self.faults if fault.takes(method, path)), None)
            if fault is None:
                return None
            fault.fired += 1
            return fault.failure

    def count(self, method: str, part: str = "") -> int:
        """Requests of this method whose path and query contain `part`."""
        return sum(1 for made, path in self.requests if made == method and part in path)


@contextmanager
def running_proxy(
    upstream: str, address: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> Iterator[FaultyProxy]:
    """A proxy before the server at `upstream`, at this address of the machine, that lives as long as the block.

    With `tls` it is asked by https.
    """
    proxy = FaultyProxy(upstream)
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    server = _Server((address, 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    proxy.endpoint = f"{'https' if tls else 'http'}://{address}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        # Clients that are killed, or refuse a certificate, break off: not worth a word.
        if not isinstance(sys.exception(), (ConnectionError, ssl.SSLError)):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: FaultyProxy

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - http.server calls them so

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        failure = self.proxy.take(self.command, self.path, dict(self.headers))
        if failure is Failure.SLOW_DOWN:
            return self._send(503, {}, _error("SlowDown"))
        if failure is Failure.CONFLICT:
            return self._send(409, {}, _error("ConditionalRequestConflict"))
        if failure is Failure.REFUSED:
            return self._send(403, {}, _error("AccessDenied"))
        if failure is Failure.KEY_REFUSED:
            return self._send(403, {}, _error("InvalidAccessKeyId"))
        if failure is Failure.NOT_FOUND:
            return self._send(404, {}, b"<html><body>404 Not Found</body></html>")
        if failure is Failure.RESET:
            return self._break_off()
        if failure is Failure.STRUCK_BEFORE:
            self.proxy.strike()
            return self._break_off()
        status, headers, answer = self._forward(body)
        if failure is Failure.STRUCK_AFTER:
            self.proxy.strike()
            return self._break_off()
        if failure is Failure.REPLY_IS_ERROR:
            return self._send(500, {}, _error("InternalError"))
        if failure is Failure.HANG:
            self._wait_for_end()
        if failure in (Failure.REPLY_LOST, Failure.HANG):
            return self._break_off()
        self._send(status, headers, answer, cut=failure in (Failure.CUT, Failure.SHORT))
        if failure is Failure.CUT:
            self._break_off()
        self.close_connection |= failure in (Failure.SHORT, Failure.CLOSED)

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("connection", "expect")}
        connection = http.client.HTTPConnection(self.proxy.upstream, timeout=60)
        try:
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def _send(self, status: int, headers: dict[str, str], body: bytes, cut: bool = False) -> None:
        self.send_response(status)
        length = headers.get("Content-Length") if self.command == "HEAD" else str(len(body))
        dropped = {"content-length", "connection", "transfer-encoding", "date", "server"}
        for name, value in headers.items():
            if name.lower() not in dropped:
                self.send_header(name, value)
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)

    def _wait_for_end(self) -> None:
        """Until whoever asked hangs up."""
        with suppress(OSError):
            self.rfile.read(1)

    def _break_off(self) -> None:
        """End the connection with a reset."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        with suppress(OSError):
            self.connection.close()

    def log_message(self, *_arguments: Any) -> None:
        return


def _error(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>told to fail</Message></Error>".encode()
