"""Large reads from a socket: who reads is woken when all has come; on slow links too, and where a server hangs."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from urllib3 import HTTPConnectionPool
from urllib3.exceptions import ReadTimeoutError

from storage.objects.s3 import parts

BODY = bytes(range(256)) * 2000
CHUNK_BYTES = 32_000
HEAD = f"HTTP/1.1 206 Partial Content\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
TIMEOUT_SECONDS = 0.5


@contextmanager
def connections_to(answer: Callable[[socket.socket], None]) -> Iterator[HTTPConnectionPool]:
    """To a server that answers each connection's first request so."""

    def serve() -> None:
        client, _ = listener.accept()
        with client:
            client.recv(1 << 16)
            answer(client)
            client.recv(1)  # until the other end closes

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        pool = HTTPConnectionPool("127.0.0.1", listener.getsockname()[1], timeout=TIMEOUT_SECONDS, retries=False)
        pool.ConnectionCls = parts._Connection
        yield pool
        pool.close()
        thread.join(10)


def send_in_chunks(client: socket.socket, pause_seconds: float) -> None:
    client.sendall(HEAD)
    for start in range(0, len(BODY), CHUNK_BYTES):
        time.sleep(pause_seconds)  # as a slow link brings them
        client.sendall(BODY[start : start + CHUNK_BYTES])


def test_who_reads_is_woken_a_few_times_and_not_for_each_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    class Counting(parts._Socket):
        def recv_into(self, *arguments: object) -> int:
            counts.append(super().recv_into(*arguments))  # type: ignore[arg-type]
            return counts[-1]

    monkeypatch.setattr(parts, "_Socket", Counting)
    with connections_to(lambda client: send_in_chunks(client, 0.005)) as pool:
        assert pool.urlopen("GET", "/").data == BODY
    assert len(counts) <= 6  # the head, the body, and what is left of a buffer; there are sixteen pieces
    assert sum(counts) == len(HEAD) + len(BODY)


def test_on_a_link_that_brings_less_within_the_time_out_all_is_read_all_the_same() -> None:
    began = time.monotonic()
    with connections_to(lambda client: send_in_chunks(client, TIMEOUT_SECONDS / 5)) as pool:
        assert pool.urlopen("GET", "/").data == BODY
    assert time.monotonic() - began > 2 * TIMEOUT_SECONDS  # it did take longer


def test_a_server_that_hangs_within_an_answer_is_noticed() -> None:
    with (
        connections_to(lambda client: client.sendall(HEAD + BODY[:100_000])) as pool,
        pytest.raises(ReadTimeoutError),
    ):
        pool.urlopen("GET", "/")
