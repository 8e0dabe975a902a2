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
            text = self._take(log, is_last)
            if text:
                yield NewText(log.node, text)

    def _take(self, log: StoredLog, is_last: bool) -> str:
        read_to = self._read_to.get(log.node, 0)
        new = log.data[max(0, read_to - log.begins_at) :]
        whole = new if is_last else new[: new.rfind(b"\n") + 1]
        if not whole:
            return ""
        self._read_to[log.node] = max(read_to, log.begins_at) + len(whole)
        missed = log.begins_at - read_to
        gap = f"({count_of(missed, 'byte')} of this log are not in the store.)\n" if missed > 0 else ""
        return gap + self._select(whole.decode(errors="replace"))

    def _select(self, text: str) -> str:
        if self._prefix is None:
            return text
        lines = io.StringIO(text, newline="\n")  # `splitlines` ends one at other characters too
        return "".join(line for line in lines if line.startswith(self._prefix))
