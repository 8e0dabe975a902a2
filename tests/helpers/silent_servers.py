"""Servers that accept every connection, as those behind a broken balancer do, and never answer, or take their time.

Invariant: connections stay open until the block is left.
"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class SilentServer:
    """Where it listens, and who came."""

    address: str
    connections: list[socket.socket] = field(default_factory=list)


@contextmanager
def running_silent_server() -> Iterator[SilentServer]:
    """On loopback, on a port of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = SilentServer(f"http://127.0.0.1:{listener.getsockname()[1]}")

        def accept() -> None:
            with suppress(OSError):  # closed
                while True:
                    server.connections.append(listener.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        yield server
        listener.shutdown(socket.SHUT_RDWR)
    for connection in server.connections:
        connection.close()


@contextmanager
def running_dripping_server(body: bytes, seconds: float) -> Iterator[str]:
    """Answers each request of HTTP with `body`, a byte every so many seconds; its address."""
    with running_silent_server() as server:
        threading.Thread(target=_drip, args=[server, body, seconds], daemon=True).start()
        yield server.address


def _drip(server: SilentServer, body: bytes, seconds: float) -> None:
    while not server.connections:
        time.sleep(0.01)  # nobody came yet
    connection = server.connections[0]
    connection.recv(65536)
    with suppress(OSError):  # who asked has gone
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
        for byte in body:
            connection.sendall(bytes([byte]))
            time.sleep(seconds)  # slow on purpose
