"""The way to a server on loopback, which can be shut: then every connection breaks, and each new one breaks at once.

Invariant: it passes bytes on as they are. Who goes past it, by the server's own address, is not concerned.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

CHUNK_BYTES = 1 << 16


class Link:
    """Where it listens; open at first."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        assert parts.hostname is not None and parts.port is not None
        self._upstream = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._is_shut = False
        self._living: set[socket.socket] = set()

    def shut(self) -> None:
        with self._lock:
            self._is_shut = True
            for one in self._living:
                _break(one)

    def open(self) -> None:
        with self._lock:
            self._is_shut = False

    def serve(self) -> None:
        """Until `close`."""
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def close(self) -> None:
        self.shut()
        _break(self._listener)
        self._listener.close()

    def _connect(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self._upstream) as server:
            with self._lock:
                if self._is_shut:
                    return
                self._living |= {client, server}
            back = threading.Thread(target=_pass_on, args=(server, client), daemon=True)
            back.start()
            _pass_on(client, server)
            back.join()
            with self._lock:
                self._living -= {client, server}


@contextmanager
def running_link(upstream: str) -> Iterator[Link]:
    """A link to the server at `upstream` that lives as long as the block."""
    link = Link(upstream)
    thread = threading.Thread(target=link.serve, daemon=True)
    thread.start()
    try:
        yield link
    finally:
        link.close()
        thread.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while chunk := source.recv(CHUNK_BYTES):
            target.sendall(chunk)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _break(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
