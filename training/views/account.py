"""The account of a segment's views: which deaths it survived, and who joined. Loads no torch.

Invariant: what is told is what the agent saw and the ranks that went on noted. A view that another one followed before
training went on in it is told of with that one; one that was the last, and in which it did not, is not told of.
"""

import signal
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from storage.runs.run_records import ViewRecord, ViewTotals
from training.views.folder import Going, LostMember, View, ViewFolder

# At each end of the list that a record has: ranks of a machine that is taken away may die thousands of times.
MOST_RECORDS = 100
OUT = "Rank {rank} died so often in a short time that none is begun in its place any more in this segment."


class ViewsAccount(NamedTuple):
    """Of the views after the first: the first and the last of them, oldest first, and what all of them come to."""

    records: list[ViewRecord]
    totals: ViewTotals | None


def describe_views(segment_folder: Path, most: int = MOST_RECORDS) -> ViewsAccount:
    """The views of the segment that works, or worked, in this folder, with records of `most` at each end."""
    folder = ViewFolder(segment_folder)
    records = _list_records(folder)
    left_out = slice(most, -most if len(records) > 2 * most else most)
    totals = _sum_up(records, folder.find_out()) if records else None
    del records[left_out]
    return ViewsAccount(records, totals)


def newest_going(segment_folder: Path) -> int:
    """The number of the newest view in which training went on; -1 if it did in none, as far as is known."""
    folder = ViewFolder(segment_folder)
    of_others = [view.number for view, going in folder.all_views() if going is not None]
    first = -1 if folder.find_going(0) is None else 0
    return max([first, *of_others])


def describe_change(view: View, step: int, seconds: float, stay_out: Collection[int] = ()) -> str:
    """What became of the ranks in this view, in which training goes on at `step`, so many seconds after its commit.

    In place of those that `stay_out` none is begun.
    """
    died = [f"rank {lost.member.slot} ({_cause_of(lost)})" for lost in view.lost]
    joined = [f"rank {member.slot}" for member in view.joined]
    parts = [f"{' and '.join(died)} died"] if died else []
    parts += [f"{' and '.join(joined)} joined"] if joined else []
    number = len(view.members)
    words = f"{', '.join(parts)}: {number} rank{'s' if number != 1 else ''} train on from step {step:,}"
    out = [OUT.format(rank=lost.member.slot) for lost in view.lost if lost.member.slot in stay_out]
    return " ".join([f"{words[0].upper()}{words[1:]}, {seconds:.2f} s later.", *out])


def name_signal(number: int) -> str:
    """Its name, for people."""
    known = number in signal.valid_signals() and number < signal.SIGRTMIN
    return signal.Signals(number).name if known else f"signal {number}"


def _cause_of(lost: LostMember) -> str:
    return "replaced, after many views" if lost.is_worn else name_signal(lost.signal)


def _list_records(folder: ViewFolder) -> list[ViewRecord]:
    described: list[ViewRecord] = []
    passed: list[View] = []
    for view, going in folder.all_views():
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
    began = next((view for view in views if view.lost), views[-1])
    return ViewRecord(
        step=going.step,
        lost=[lost.member.slot for view in views for lost in view.lost],
        causes=[_cause_of(lost) for view in views for lost in view.lost],
        joined=[member.slot for view in views for member in view.joined],
        num_ranks=len(views[-1].members),
        seconds=round(going.seconds + views[-1].committed_at - began.committed_at, 3),
    )
