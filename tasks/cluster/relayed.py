"""What the nodes of a job passed on through the store, for the supervisor.

Invariant: each report is read once, in the order of its number.
"""

import time

from storage.logs import read_logs
from storage.objects.store import Store
from tasks.cluster.orders import find_reports, read_node_statuses, read_rank_ends
from tasks.cluster.rank_ends import RankEndsAccount, describe_ends_on_nodes
from tasks.cluster.relay import RELAY_SECONDS
from training.metrics.reporter import Report
from training.rank_status import RankStatus


class Relayed:
    """Of one fence."""

    def __init__(self, store: Store, run: str, fence: int) -> None:
        self._store, self._run, self._fence = store, run, fence
        self._read_at = 0.0
        self._seen = 0

    def read_reports(self, is_last: bool) -> list[Report]:
        """Those since the last call, oldest first; the store is asked every few seconds, and at last once more."""
        if not is_last and time.monotonic() - self._read_at < RELAY_SECONDS:  # a request to a bucket each time
            return []
        self._read_at = time.monotonic()
        live = find_reports(self._store, self._run, self._fence)
        new = [numbered for numbered in live.reports if numbered.number > self._seen] if live is not None else []
        self._seen = max((numbered.number for numbered in new), default=self._seen)
        return [numbered.report for numbered in new]

    def read_rank_statuses(self) -> list[RankStatus]:
        """Where the ranks of all nodes are."""
        return read_node_statuses(self._store, self._run, self._fence)

    def read_log(self) -> str:
        """What all nodes printed, one after the other."""
        return "\n".join(log.text for log in read_logs(self._store, self._run, self._fence))


def describe_relayed_ends(store: Store, run: str, fence: int) -> RankEndsAccount:
    """How the ranks of a job ended, by what the agents of its nodes saw."""
    return describe_ends_on_nodes(read_rank_ends(store, run, fence), read_node_statuses(store, run, fence))
