"""A network link of a given speed and delay before a server on loopback, for what depends on the two.

Invariant: all connections share the link, so together they get its speed; every byte that comes back is counted. It
passes bytes on as they are: for a network that fails there is `faulty_proxy.py`.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

CHUNK_BYTES = 1 << 16


class SlowLink:
    """Where it listens, and the bytes that came back through it so far."""

    def __init__(self, upstream: str, bytes_per_second: float, delay_seconds: float) -> None:
        self.bytes_back = 0
        self.endpoint = ""
        self._upstream = urlsplit(upstream)
        self._bytes_per_second = bytes_per_second
        self._delay_seconds = delay_seconds
        self._is_free_at = 0.0

    async def serve(self, is_ready: threading.Event, is_over: asyncio.Event) -> None:
        """Pass connections on until it is over."""
        server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        is_ready.set()
        await is_over.wait()
        server.close()

    async def _pass_on(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        to_server: asyncio.StreamWriter | None = None
        with suppress(ConnectionError):
            await asyncio.sleep(self._delay_seconds)  # what it takes two ends to know of each other
            server, to_server = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
            await asyncio.gather(self._there(client, to_server), self._back(server, to_client))
        for writer in (to_server, to_client):
            if writer is not None:
                writer.close()

    async def _there(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Requests, at once: the delay of both ways is on the way back."""
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers, at the speed of the link. What is on its way does not keep the next piece from setting out."""
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        arriving = asyncio.create_task(_arrive(on_the_way, writer))
        clock = asyncio.get_running_loop().time
        while (chunk := await reader.read(CHUNK_BYTES)) and not arriving.done():
            self.bytes_back += len(chunk)
            self._is_free_at = max(clock(), self._is_free_at) + len(chunk) / self._bytes_per_second
            on_the_way.put_nowait((self._is_free_at + self._delay_seconds, chunk))
            await asyncio.sleep(self._is_free_at - clock())
        on_the_way.put_nowait((clock() + self._delay_seconds, b""))
        await arriving


async def _arrive(on_the_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
    """Give the client what has come, until that is all or the client is gone, as one that ended while it fetched."""
    clock = asyncio.get_running_loop().time
    while True:
        at, chunk = await on_the_way.get()
        await asyncio.sleep(at - clock())
        if not chunk or writer.is_closing():
            writer.close()
            return
        writer.write(chunk)


@contextmanager
def running_slow_link(upstream: str, bytes_per_second: float, delay_seconds: float) -> Iterator[SlowLink]:
    """A link before the server at `upstream` that lives as long as the block."""
    link = SlowLink(upstream, bytes_per_second, delay_seconds)
    is_ready = threading.Event()
    is_over = asyncio.Event()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(link.serve(is_ready, is_over),), daemon=True)
    thread.start()
    is_ready.wait()
    try:
        yield link
    finally:
        loop.call_soon_threadsafe(is_over.set)
        thread.join()
