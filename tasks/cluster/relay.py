"""What a node passes on to the store while its ranks work: their reports, how they end, and what they print.

Invariant: a store that does not answer costs a report its punctuality, never the training: it is put again the next
time. Of plain progress the newest report is enough; a report that comes once is kept until many more came after it.
"""

import time

from storage.errors import StoreError
from storage.logs import LOG_NAME, write_log
from storage.objects.store import Store
from tasks.cluster.orders import (
    LiveReports,
    NodeStatuses,
    NumberedReport,
    find_reports,
    write_node_statuses,
    write_rank_ends,
    write_reports,
)
from tasks.cluster.rank_ends import find_counting_ends
from tasks.cluster.reports import ReportFollower, is_event
from training.agents.ends import RankEnds
from training.metrics.reporter import Report
from training.rank_status import read_rank_statuses
from training.spec import SegmentSpec

RELAY_SECONDS = 2.0
STATUSES_SECONDS = 4.0
MOST_EVENTS = 100


class Relay:
    """The relay of one node. Only where the first rank is, or was, there are reports to pass on.

    A node that came later has another `log_name`: the store keeps what its ranks printed before.
    """

    def __init__(self, store: Store, spec: SegmentSpec, node: str, log_name: str | None = None) -> None:
        self._store, self._run, self._fence, self._node = store, spec.run, spec.fence, node
        self._folder = spec.scratch_folder
        self._progress = ReportFollower(spec.progress_file)
        self._log = spec.scratch_folder / LOG_NAME
        self._reports: list[NumberedReport] = []
        self._count = 0
        self._has_news = self._has_statuses = False
        self._log_bytes = 0
        self._ends = RankEnds()  # those that the store has
        self._log_name = log_name or node
        self._due = self._statuses_due = 0.0

    def go_on(self) -> None:
        """After what an earlier process of this node passed on, whose numbers were read. Raises `StoreError`."""
        self._reports = find_reports(self._store, self._run, self._fence, self._node).reports
        self._count = max((numbered.number for numbered in self._reports), default=0)

    def pass_on(self, at_once: bool = False) -> bool:
        """Put what is new into the store, every few seconds however often this is called; False if it has to wait."""
        if not at_once and time.monotonic() < self._due:
            return True
        self._due = time.monotonic() + RELAY_SECONDS
        self._take(self._progress.read())
        try:
            if self._has_news:
                live = LiveReports(reports=self._reports)
                write_reports(self._store, self._run, self._fence, self._node, live)
                self._has_news = False
            self._pass_on_ends()
            self._pass_on_log()
            self._pass_on_statuses()
        except StoreError as error:
            print(f"The store did not take the reports of this node; they are put again: {error}", flush=True)
            return False
        return True

    def _take(self, new: list[Report]) -> None:
        for report in new:
            self._count += 1
            self._reports.append(NumberedReport(number=self._count, report=report))
            self._has_news = True
        newest = self._reports[-1:]
        events = [numbered for numbered in self._reports[:-1] if is_event(numbered.report)]
        self._reports = events[-MOST_EVENTS:] + newest

    def _pass_on_statuses(self) -> None:
        if time.monotonic() < self._statuses_due:
            return
        # By the name that the cluster has for the machine, which is the one to look for.
        rank_statuses = [
            rank_status.model_copy(update={"host": self._node}) for rank_status in read_rank_statuses(self._folder)
        ]
        if rank_statuses or self._has_statuses:  # of a rank that died there is none
            write_node_statuses(self._store, self._run, self._fence, self._node, NodeStatuses(ranks=rank_statuses))
        self._has_statuses = bool(rank_statuses)
        self._statuses_due = time.monotonic() + STATUSES_SECONDS

    def _pass_on_ends(self) -> None:
        ends = find_counting_ends(self._folder)
        if ends == self._ends:
            return
        named = [end.model_copy(update={"host": self._node}) for end in ends.ends]  # as in a status
        relayed = ends.model_copy(update={"ends": named})
        write_rank_ends(self._store, self._run, self._fence, self._node, relayed)
        self._ends = ends

    def _pass_on_log(self) -> None:
        size = self._log.stat().st_size if self._log.exists() else 0
        if size != self._log_bytes:
            self._log_bytes = write_log(self._store, self._run, self._fence, self._log, self._log_name)
