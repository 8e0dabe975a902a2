"""Why ranks ended, in words, by the account of their agents: of this machine's, or of those of a job's nodes.

Invariant: the rank that met a fault first is named, and one that only lost its connection to it never is. Only what the
agents have seen is told; where one was killed too, nothing is.
"""

import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from storage.runs.run_records import ViewRecord, ViewTotals
from training.agents.deadly import is_own_doing
from training.agents.ends import Fault, RankEnd, RankEnds, read_ends
from training.rank_status import RankStatus
from training.views.account import SeenViews, all_views, describe_views, find_survived, name_signal
from training.views.folder import ViewFolder

BY_WHOM = {
    signal.SIGKILL: "by a person, or by the kernel when the machine, or this container, had no memory left (`dmesg`)",
    signal.SIGSEGV: "it read memory that is not its own: an error in a library or a driver, or a faulty memory module",
    signal.SIGBUS: "the shared memory in /dev/shm, or the disk under a mapped file, is full",
    signal.SIGABRT: "a library found an error that it cannot go on with; what it printed is in the log",
}
OUT_OF_MEMORY = "by the kernel, since the machine, or this container, had no memory left: it counts such a kill"


@dataclass(frozen=True)
class RankEndsAccount:
    """`kills` are the ranks that a signal ended; `first` is the rank that met a fault first. None if there is none.

    Those after whose end the others trained on are not among them, but in `views`. `cluster` is what a cluster says of
    the end of its job, or what is known of nodes from which nothing came. `deadly` is the microbatch that ended
    several, for which the others were asked to leave.
    """

    kills: str | None = None
    first: str | None = None
    cluster: str | None = None
    views: tuple[ViewRecord, ...] = ()
    view_totals: ViewTotals | None = None
    deadly: str | None = None

    @property
    def cause(self) -> str | None:
        """The first fault; where it was a kill, with all kills: one reason may have ended several."""
        if self.deadly is not None:
            return self.deadly
        is_kill = self.first is not None and self.first in (self.kills or "")
        return self.kills if is_kill else self.first


def describe_rank_ends(folder: Path) -> RankEndsAccount:
    """The account of the ranks that worked in this folder."""
    views, ends = ViewFolder(folder), read_ends(folder)
    return _account([ends], all_views(views), views.find_out())


def find_counting_ends(folder: Path) -> RankEnds:
    """The ends of the ranks that worked in this folder, but for those after which the others trained on."""
    ends = read_ends(folder)
    if not ends.ends:
        return ends
    survived = find_survived(all_views(ViewFolder(folder)))
    return ends.model_copy(update={"ends": [end for end in ends.ends if not _is_survived(end, survived)]})


def describe_ends_on_nodes(
    heard: Mapping[str, RankEnds],
    rank_statuses: Collection[RankStatus],
    views: SeenViews = (),
    stay_out: Collection[int] = (),
) -> RankEndsAccount:
    """The account of a job's ranks, each named with its node. `heard` are the ends by their nodes.

    `views` and `stay_out` are as in `training/views/account.py`. `rank_statuses` say which ranks each node had: where
    nodes lost their connection to one from which nothing came, that one is `cluster`.
    """
    account = _account(list(heard.values()), views, stay_out, is_of_nodes=True)
    has_lost_a_peer = any(_has_lost_a_peer(end) for ends in heard.values() for end in ends.ends)
    if account.first is not None or not has_lost_a_peer:
        return account
    return replace(account, cluster=_describe_silent([one for one in rank_statuses if one.host not in heard]))


def _account(
    nodes: Collection[RankEnds], views: SeenViews, stay_out: Collection[int], is_of_nodes: bool = False
) -> RankEndsAccount:
    """Of several nodes, whose clocks differ, nobody knows which fault came first: the surest one counts."""
    survived, told = find_survived(views), describe_views(views, stay_out)
    faults = [[end for end in node.ends if _is_cause(end, survived)] for node in nodes]
    kills = sorted((end for ends in faults for end in ends if end.signal is not None), key=lambda end: end.rank)
    causes = [next((end for end in ends if not _has_lost_a_peer(end)), None) for ends in faults]
    first = min((end for end in causes if end is not None), key=lambda end: (not _is_sure(end), end.rank), default=None)
    return RankEndsAccount(
        kills=" ".join(_describe(end, is_of_nodes) for end in kills) or None,
        first=None if first is None else _describe(first, is_of_nodes),
        views=tuple(told.records),
        view_totals=told.totals,
        deadly=next((node.deadly for node in nodes if node.deadly is not None), None),
    )


def _is_cause(end: RankEnd, survived: Collection[tuple[int, int]]) -> bool:
    """Whether the segment may have ended with it: the others did not train on, or could not."""
    return end.is_fault and not end.was_killed_by_agent and not _is_survived(end, survived)


def _is_survived(end: RankEnd, survived: Collection[tuple[int, int]]) -> bool:
    return end.was_joining or (end.rank, end.pid) in survived


def _has_lost_a_peer(end: RankEnd) -> bool:
    return end.failure is not None and end.failure.fault is Fault.LOST_PEER


def _is_sure(end: RankEnd) -> bool:
    """Whether this cannot be what follows when another rank is gone: libraries then raise, or abort, in many words."""
    if end.signal is not None:
        return end.signal != signal.SIGABRT
    return end.failure is not None and end.failure.fault is not Fault.OTHER


def _describe_silent(rank_statuses: Collection[RankStatus]) -> str | None:
    nodes = sorted({one.host for one in rank_statuses})
    if not nodes:
        return None
    ranks = [str(rank) for rank in sorted(one.rank for one in rank_statuses)]
    which = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}"
    return f"No word came from {', '.join(nodes)} of how {which} ended."


def _describe(end: RankEnd, is_of_nodes: bool) -> str:
    where = f" on {end.host}" if is_of_nodes else ""
    who = f"Rank {end.rank} (process {end.pid}{where})"
    if end.signal is not None:
        return f"{who} was killed with {name_signal(end.signal)}{_by_whom(end)}.{_at_what(end)}"
    if end.failure is None:
        return f"{who} left with exit code {end.exit_code} and said no reason; what it printed is in the log."
    return f"{who} {end.failure.fault}: {end.failure.words.rstrip('.')}."


def _at_what(end: RankEnd) -> str:
    """Where what the rank computed may have ended it."""
    if end.place is None or not is_own_doing(end):
        return ""
    return f" It computed microbatch {end.place.index} of the step after step {end.place.step:,}."


def _by_whom(end: RankEnd) -> str:
    if end.is_out_of_memory:
        return f": {OUT_OF_MEMORY}"
    number = end.signal or 0
    known = next((words for one, words in BY_WHOM.items() if one == number), None)
    return f": {known}" if known is not None else ""
