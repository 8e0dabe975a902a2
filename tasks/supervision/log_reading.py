"""What came into a segment's log in the store since the last look.

Invariant: of what is there at a look, every byte is given once, and in order; what came and went between two
looks is counted. Lines are whole, but for one that never ends.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass

from storage.logs import StoredLog, read_logs
from storage.objects.store import Store
from tasks.text import count_of
from training.metrics.rank_lines import prefix_of

PIECE_BYTES = 2**20


@dataclass(frozen=True)
class NewText:
    """Whole lines of one log; `node` is None where the ranks were on their supervisor's machine."""

    node: str | None
    text: str


class LogReader:
    """Of the segment, or evaluation, with this fence. With a `rank`, only the lines of this rank."""

    def __init__(self, store: Store, run: str, fence: int, rank: int | None = None) -> None:
        self.fence = fence
        self._store, self._run = store, run
        self._prefix = None if rank is None else prefix_of(rank)
        self._read_to: dict[str | None, int] = {}

    def read(self, is_last: bool) -> Iterator[NewText]:
        """What is new in each log. A line that has not ended comes when it has, or if this is the last time."""
        for log in read_logs(self._store, self._run, self.fence):
            for text in self._take(log, is_last):
                if text:
                    yield NewText(log.node, text)

    def _take(self, log: StoredLog, is_last: bool) -> Iterator[str]:
        read_to = self._read_to.get(log.node, 0)
        begin = max(0, read_to - log.begins_at)
        end = len(log.data) if is_last else log.data.rfind(b"\n", begin) + 1
        if end <= begin:
            return
        self._read_to[log.node] = log.begins_at + end
        missed = log.begins_at - read_to
        gap = f"({count_of(missed, 'byte')} of this log are not in the store.)\n" if missed > 0 else ""
        while begin < end:
            piece_end = _end_of_piece(log.data, begin, end)
            yield gap + self._select(log.data[begin:piece_end].decode(errors="replace"))
            begin, gap = piece_end, ""

    def _select(self, text: str) -> str:
        if self._prefix is None:
            return text
        lines = io.StringIO(text, newline="\n")  # `splitlines` ends one at other characters too
        return "".join(line for line in lines if line.startswith(self._prefix))


def _end_of_piece(data: bytes, begin: int, end: int) -> int:
    """Where the whole lines end that are given at once: a long log would take several times its size in memory."""
    if end - begin <= PIECE_BYTES:
        return end
    within = data.rfind(b"\n", begin, begin + PIECE_BYTES)
    behind = within if within >= 0 else data.find(b"\n", begin + PIECE_BYTES, end)
    return behind + 1 if behind >= 0 else end
