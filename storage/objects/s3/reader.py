"""One version of an object as a file that is open for reading, at any position; where it is wanted, with read-ahead.

Invariant: all bytes come from the version that was found, whatever is put under the key meanwhile. What is fetched and
not read is bounded: of a file read here and there by 64 KiB for each position and a sixteenth of one contiguous read,
of a file read exactly, or to its end, by nothing.
"""

import io
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from storage.objects.s3.connection import S3Connection, StoredObject
from storage.objects.s3.transfers import fill_range, read_range

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# A request takes as long as some ten or hundred KiB: less than this is not worth one of its own.
FIRST_BYTES = 64 << 10
MOST_BYTES = 8 << 20
STREAM_GROWTH = 8
RUN_SHARE = 16
NUM_AHEAD = 3


def open_exactly(s3: S3Connection, key: str, found: StoredObject) -> io.RawIOBase:
    """The object as a binary file of which each read is one request, for the bytes that it asks for and no others.

    For who knows which bytes are needed. Reading raises `StoreError` if the object was replaced, `ObjectMissingError`
    if it was deleted.
    """
    return _ExactReader(s3, key, found)


def open_object(s3: S3Connection, key: str, found: StoredObject) -> io.RawIOBase:
    """The object as a binary file that is read here and there, also in small chunks; a read gives all it asks for.

    Reading raises as above.
    """
    return _ObjectReader(s3, key, found, is_stream=False)


def open_stream(s3: S3Connection, key: str, found: StoredObject) -> io.BufferedReader:
    """The object as a binary file that is read from its beginning to its end. Reading raises as above."""
    return io.BufferedReader(_ObjectReader(s3, key, found, is_stream=True), buffer_size=FIRST_BYTES)


class _ExactReader(io.RawIOBase):
    """Keeps nothing but the position."""

    def __init__(self, s3: S3Connection, key: str, found: StoredObject) -> None:
        self._s3 = s3
        self._key = key
        self._found = found
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._found.num_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        """Fill the buffer, unless the object ends before."""
        target = memoryview(buffer).cast("B")
        num_wanted = self._num_there(len(target))
        if num_wanted:
            fill_range(self._s3, self._key, self._found, self._position, target[:num_wanted])
            self._position += num_wanted
        return num_wanted

    def readall(self) -> bytes:
        """What is left; the base class would ask for it in small chunks."""
        return self.read(self._num_there(self._found.num_bytes)) or b""

    def _num_there(self, num_bytes: int) -> int:
        """So many bytes from the position on, or as many as the object has."""
        return max(0, min(num_bytes, self._found.num_bytes - self._position))

    def _request(self, start: int, num_bytes: int) -> bytes:
        return read_range(self._s3, self._key, self._found, start, min(start + num_bytes, self._found.num_bytes))


class _ObjectReader(_ExactReader):
    """Keeps one block of the object, and of a stream the next ones, which threads of its own fetch."""

    def __init__(self, s3: S3Connection, key: str, found: StoredObject, is_stream: bool) -> None:
        super().__init__(s3, key, found)
        self._is_stream = is_stream
        self._block = b""
        self._block_start = 0
        self._run_end = 0  # where the last read ended, and how much was read up to there without a jump
        self._run_bytes = 0
        self._stream_bytes = FIRST_BYTES  # the size of the next block of a stream, and where the last one ends
        self._sent = 0
        self._ahead: deque[tuple[int, Future[bytes]]] = deque()
        self._threads: ThreadPoolExecutor | None = None

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        """Fill the buffer, unless the object ends before."""
        target = memoryview(buffer).cast("B")
        num_wanted = self._num_there(len(target))
        self._note_jump()
        num_done = 0
        while num_done < num_wanted:
            part = self._read_block(num_wanted - num_done)
            target[num_done : num_done + len(part)] = part
            num_done += len(part)
            self._position += len(part)
        self._run_bytes += num_done
        self._run_end = self._position
        return num_done

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._ahead.clear()
        self._block = b""
        super().close()

    def _note_jump(self) -> None:
        if not 0 <= self._position - self._run_end <= FIRST_BYTES:
            self._run_bytes = 0

    def _read_block(self, num_wanted: int) -> memoryview:
        """At least one byte from the position on, and at most those that are wanted."""
        if not self._block_start <= self._position < self._block_start + len(self._block):
            fetch = self._fetch_stream if self._is_stream else self._fetch
            self._block_start, self._block = fetch(num_wanted)
        start = self._position - self._block_start
        return memoryview(self._block)[start : start + num_wanted]

    def _fetch(self, num_wanted: int) -> tuple[int, bytes]:
        # What is read first is often the end, in more than one read.
        start = min(self._position, max(0, self._found.num_bytes - FIRST_BYTES))
        share = max(FIRST_BYTES, self._run_bytes // RUN_SHARE)
        return start, self._request(start, min(max(num_wanted, share), MOST_BYTES))

    def _fetch_stream(self, _num_wanted: int) -> tuple[int, bytes]:
        """The next block: small ones first, since many a file is only looked into, then large ones ahead of time."""
        if not self._ahead or self._ahead[0][0] != self._position:
            self._ahead.clear()
            self._send(self._position)
        start, block = self._ahead.popleft()
        while self._stream_bytes == MOST_BYTES and len(self._ahead) < NUM_AHEAD and self._sent < self._found.num_bytes:
            self._send(self._sent)
        return start, block.result()

    def _send(self, start: int) -> None:
        """Let a thread fetch the block that begins there."""
        self._threads = self._threads or ThreadPoolExecutor(1 + NUM_AHEAD, thread_name_prefix="s3")
        self._ahead.append((start, self._threads.submit(self._request, start, self._stream_bytes)))
        self._sent = start + self._stream_bytes
        self._stream_bytes = min(MOST_BYTES, self._stream_bytes * STREAM_GROWTH)
