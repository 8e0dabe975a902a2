"""What the nodes of a job passed on through the store, for the supervisor.

Invariant: each report of a node is read once, in the order of its number.
"""

import time

from storage.logs import read_logs
from storage.objects.store import Store
from tasks.cluster.orders import read_node_statuses, read_rank_ends, read_reports
from tasks.cluster.rank_ends import RankEndsAccount, describe_ends_on_nodes
from tasks.cluster.relay import RELAY_SECONDS
from training.metrics.reporter import Report
from training.rank_status import RankStatus
from training.views.account import all_views
from training.views.stored import StoredViews


class Relayed:
    """Of one fence."""

    def __init__(self, store: Store, run: str, fence: int) -> None:
        self._store, self._run, self._fence = store, run, fence
        self._read_at = 0.0
        self._seen: dict[str, int] = {}

    def read_reports(self, is_last: bool) -> list[Report]:
        """Those since the last call, oldest first; the store is asked every few seconds, and at last once more."""
        if not is_last and time.monotonic() - self._read_at < RELAY_SECONDS:  # a request to a bucket each time
            return []
        self._read_at = time.monotonic()
        new: list[Report] = []
        for node, live in read_reports(self._store, self._run, self._fence).items():
            seen = self._seen.get(node, 0)
            new += [numbered.report for numbered in live.reports if numbered.number > seen]
            self._seen[node] = max((numbered.number for numbered in live.reports), default=seen)
        return sorted(new, key=lambda report: report.view)  # of one view they are one node's, in their order

    def read_rank_statuses(self) -> list[RankStatus]:
        """Where the ranks of all nodes are."""
        return read_node_statuses(self._store, self._run, self._fence)

    def read_log(self) -> str:
        """What all nodes printed, one after the other."""
        return "\n".join(log.text for log in read_logs(self._store, self._run, self._fence))


def describe_relayed_ends(store: Store, run: str, fence: int) -> RankEndsAccount:
    """How the ranks of a job ended, by what the agents of its nodes saw."""
    views, heard = StoredViews(store, run, fence), read_rank_ends(store, run, fence)
    statuses = read_node_statuses(store, run, fence)
    return describe_ends_on_nodes(heard, statuses, all_views(views), views.find_out())
