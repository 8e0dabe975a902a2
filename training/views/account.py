"""The account of a segment's views: which deaths it survived, and who joined. Loads no torch.

Invariant: what is told is what the agent saw and the ranks that went on noted. A view that another one followed before
training went on in it is told of with that one; one that was the last, and in which it did not, is not told of.
"""

import signal
from collections.abc import Sequence
from pathlib import Path

from storage.runs.run_records import ViewRecord
from training.views.folder import Going, LostMember, View, ViewFolder


def describe_views(segment_folder: Path) -> list[ViewRecord]:
    """The views of the segment that worked in this folder, after the first, oldest first."""
    described: list[ViewRecord] = []
    passed: list[View] = []
    for view, going in ViewFolder(segment_folder).all_views():
        passed.append(view)
        if going is not None:
            described.append(_describe(passed, going))
            passed = []
    return described


def newest_going(segment_folder: Path) -> int:
    """The number of the newest view in which training went on; -1 if it did in none, as far as is known."""
    folder = ViewFolder(segment_folder)
    of_others = [view.number for view, going in folder.all_views() if going is not None]
    first = -1 if folder.find_going(0) is None else 0
    return max([first, *of_others])


def describe_change(view: View, step: int, seconds: float) -> str:
    """What became of the ranks in this view, in which training goes on at `step`, so many seconds after its commit."""
    died = [f"rank {lost.member.slot} ({_cause_of(lost)})" for lost in view.lost]
    joined = [f"rank {member.slot}" for member in view.joined]
    parts = [f"{' and '.join(died)} died"] if died else []
    parts += [f"{' and '.join(joined)} joined"] if joined else []
    number = len(view.members)
    words = f"{', '.join(parts)}: {number} rank{'s' if number != 1 else ''} train on from step {step:,}"
    return f"{words[0].upper()}{words[1:]}, {seconds:.2f} s later."


def name_signal(number: int) -> str:
    """Its name, for people."""
    known = number in signal.valid_signals() and number < signal.SIGRTMIN
    return signal.Signals(number).name if known else f"signal {number}"


def _cause_of(lost: LostMember) -> str:
    return "replaced, after many views" if lost.is_worn else name_signal(lost.signal)


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
