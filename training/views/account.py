"""The account of a segment's views: which deaths it survived, and who joined. Loads no torch.

Invariant: what is told is what the agent saw and the ranks that went on noted. A view that another one followed before
training went on in it is told of with that one; one that was the last, and in which it did not, is not told of.
"""

import signal
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from storage.runs.run_records import ViewRecord, ViewTotals
from training.views.view import Going, LostMember, View

SeenViews = Sequence[tuple[View, Going | None]]

# At each end of the list that a record has: ranks of a machine that is taken away may die thousands of times.
MOST_RECORDS = 100
OUT = "Rank {rank} died so often in a short time that none is begun in its place any more in this segment."


class ViewsAccount(NamedTuple):
    """Of the views after the first: the first and the last of them, oldest first, and what all of them come to."""

    records: list[ViewRecord]
    totals: ViewTotals | None


class Told(Protocol):
    """Where views are, and whether training went on in them: a folder, or the store."""

    def find(self, number: int) -> View | None: ...

    def find_going(self, number: int) -> Going | None: ...


def all_views(told: Told) -> SeenViews:
    """All views after the first, oldest first, and whether training went on in them. Raises what `told` raises."""
    found, number = [], 1
    while (view := told.find(number)) is not None:
        found.append((view, told.find_going(number)))
        number += 1
    return found


def describe_views(seen: SeenViews, stay_out: Collection[int] = (), most: int = MOST_RECORDS) -> ViewsAccount:
    """Of a segment's views after the first one, oldest first, with records of `most` at each end.

    Of each of them is known whether training went on in it. In place of the ranks that `stay_out` none is begun.
    """
    records = _list_records(seen)
    left_out = slice(most, -most if len(records) > 2 * most else most)
    totals = _sum_up(records, sorted(stay_out)) if records else None
    del records[left_out]
    return ViewsAccount(records, totals)


def find_survived(seen: SeenViews) -> set[tuple[int, int]]:
    """Number and process of each rank after whose end the others trained on."""
    newest = max((view.number for view, going in seen if going is not None), default=0)
    return {(lost.member.slot, lost.pid) for view, _ in seen if view.number <= newest for lost in view.lost}


def seconds_since_change(passed: Collection[View], now: float) -> float:
    """Since the first end of a rank that led to the last of these views, or else since that one was wanted."""
    *_, last = passed
    began = next((view for view in passed if view.lost), last)
    return round(max(0.0, now - began.committed_at), 3)


def describe_change(passed: Sequence[View], step: int, seconds: float, stay_out: Collection[int] = ()) -> str:
    """What became of the ranks in these views; in the last one training goes on at `step`, so many seconds later.

    In place of those that `stay_out` none is begun.
    """
    lost = [one for view in passed for one in view.lost]
    died = [f"rank {one.member.slot} ({_cause_of(one)})" for one in lost if not one.is_leaving]
    left = [f"rank {one.member.slot} ({_cause_of(one)})" for one in lost if one.is_leaving]
    joined = [f"rank {member.slot}" for view in passed for member in view.joined]
    parts = [f"{' and '.join(died)} died"] if died else []
    parts += [f"{' and '.join(left)} left"] if left else []
    parts += [f"{' and '.join([*joined, *_name_nodes(passed)])} joined"] if joined else []
    number = len(passed[-1].members)
    words = f"{', '.join(parts)}: {number} rank{'s' if number != 1 else ''} train on from step {step:,}"
    out = [OUT.format(rank=one.member.slot) for one in lost if one.member.slot in stay_out]
    return " ".join([f"{words[0].upper()}{words[1:]}, {seconds:.2f} s later.", *out])


def name_signal(number: int) -> str:
    """Its name, for people."""
    known = number in signal.valid_signals() and number < signal.SIGRTMIN
    return signal.Signals(number).name if known else f"signal {number}"


def _cause_of(lost: LostMember) -> str:
    if lost.is_silent:
        return "its node is lost"
    if lost.is_leaving:
        return "its node was asked to leave"
    return "replaced, after many views" if lost.is_worn else name_signal(lost.signal)


def _name_nodes(views: Sequence[View]) -> list[str]:
    """Those that came with ranks that joined."""
    return [f"node {view.node}" for view in views if view.node]


def _list_records(seen: SeenViews) -> list[ViewRecord]:
    described: list[ViewRecord] = []
    passed: list[View] = []
    for view, going in seen:
        passed.append(view)
        if going is not None:
            described.append(_describe(passed, going))
            passed = []
    return described


def _sum_up(records: Sequence[ViewRecord], stay_out: list[int]) -> ViewTotals:
    return ViewTotals(
        num_views=len(records),
        num_lost=sum(len(record.lost) for record in records),
        num_joined=sum(len(record.joined) for record in records),
        longest_seconds=max((record.seconds for record in records if record.lost), default=0.0),
        stay_out=stay_out,
    )


def _describe(views: Sequence[View], going: Going) -> ViewRecord:
    """Of views that followed each other, the last of which is the one in which training went on."""
    return ViewRecord(
        step=going.step,
        lost=[lost.member.slot for view in views for lost in view.lost],
        causes=[_cause_of(lost) for view in views for lost in view.lost],
        joined=[member.slot for view in views for member in view.joined],
        lost_nodes=sorted({lost.node for view in views for lost in view.lost if lost.node}),
        joined_nodes=[view.node for view in views if view.node],
        num_ranks=len(views[-1].members),
        seconds=going.seconds,
    )
