"""What the ranks of a segment print, in the store: `ranks.log` of this machine's, `logs/NODE.log` of a cluster's nodes.

Invariant: a log is replaced in one piece, and records how many bytes it leaves out at its beginning. So a reader that
has read a part of it knows, in whatever is there later, where the rest begins.
"""

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from storage.errors import ObjectMissingError
from storage.objects.store import Store
from storage.runs.segments import segment_path

LOG_NAME = "ranks.log"
LOG_FOLDER = "logs"
MOST_LOG_BYTES = 2**20
# Of a log of ranks that have ended: it is in memory as a whole where it is put, and where it is read.
MOST_KEPT_LOG_BYTES = 2**26
_LEFT_OUT = re.compile(rb"The first (\d+) bytes of this log are left out\.\n")


@dataclass(frozen=True)
class StoredLog:
    """What was printed from byte `begins_at` on; `node` is None where the ranks were on their supervisor's machine."""

    node: str | None
    begins_at: int
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")


def write_log(
    store: Store, run: str, fence: int, file: Path, node: str | None = None, most_bytes: int = MOST_LOG_BYTES
) -> int:
    """Replace what the store has of a log by this file, of a long one by its end; how long the file was then."""
    size = file.stat().st_size
    begins_at = 0
    if size > most_bytes:
        begins_at = size - most_bytes + len(_left_out_line(size))
    with file.open("rb") as opened:
        opened.seek(begins_at)
        data = opened.read(size - begins_at)
    store.write(_key(run, fence, node), (_left_out_line(begins_at) if begins_at else b"") + data)
    return size


def read_logs(store: Store, run: str, fence: int) -> list[StoredLog]:
    """All that the store has of a segment's logs, by node."""
    found = []
    with suppress(ObjectMissingError):
        found.append(_parse(None, store.read(_key(run, fence, None))))
    prefix = f"{segment_path(run, fence)}/{LOG_FOLDER}/"
    for key in sorted(store.list_keys(prefix)):
        found.append(_parse(key.removeprefix(prefix).removesuffix(".log"), store.read(key)))
    return found


def _left_out_line(num_bytes: int) -> bytes:
    return f"The first {num_bytes} bytes of this log are left out.\n".encode()


def _parse(node: str | None, stored: bytes) -> StoredLog:
    header = _LEFT_OUT.match(stored)
    return StoredLog(node, 0, stored) if header is None else StoredLog(node, int(header[1]), stored[header.end() :])


def _key(run: str, fence: int, node: str | None) -> str:
    name = LOG_NAME if node is None else f"{LOG_FOLDER}/{node}.log"
    return f"{segment_path(run, fence)}/{name}"
