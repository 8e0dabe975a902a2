"""What a segment's record says of ranks that died while the others trained on, in words.

Invariant: pure functions of the records.
"""

from collections.abc import Sequence

from storage.runs.run_records import ViewRecord, ViewTotals
from storage.runs.run_state import SegmentRecord
from tasks.text import count_of, listed

MOST_NAMED = 3
SHORTEST_SAID = 0.1


def describe_views(views: Sequence[ViewRecord], totals: ViewTotals | None) -> str | None:
    """Some sentences; None where no rank died and no node came. `views` may leave out some that `totals` count."""
    if totals is None:
        return None
    return " ".join(filter(None, (_describe_deaths(views, totals), *_describe_nodes(views)))) or None


def _describe_deaths(views: Sequence[ViewRecord], totals: ViewTotals) -> str | None:
    if not totals.num_lost:
        return None
    deaths = [view for view in views if view.lost][:MOST_NAMED]
    num_others = totals.num_lost - sum(len(view.lost) for view in deaths)
    named = [_describe_death(view) for view in deaths]
    others = [f"{count_of(num_others, 'more death')}"] if num_others else []
    return (
        f"{count_of(totals.num_lost, 'rank')} died and the others trained on from the same step: "
        f"{listed([*named, *others])}; the longest pause was {_seconds(totals.longest_seconds)}. "
        f"{count_of(totals.num_joined, 'rank') if totals.num_joined else 'None'} joined in their place."
        f"{_describe_out(totals.stay_out)}"
    )


def count_survived(segments: Sequence[SegmentRecord]) -> int:
    """Deaths of ranks after which the others trained on in the same segment."""
    return sum(segment.view_totals.num_lost for segment in segments if segment.view_totals)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= SHORTEST_SAID else f"less than {SHORTEST_SAID} s"


def _describe_out(ranks: Sequence[int]) -> str:
    if not ranks:
        return ""
    who = f"rank{'s' if len(ranks) > 1 else ''} {listed([str(rank) for rank in ranks], most=len(ranks))}"
    fewer = count_of(len(ranks), "rank")
    return f" {who[0].upper()}{who[1:]} died so often that none was begun again: the rest trained with {fewer} fewer."


def _describe_nodes(views: Sequence[ViewRecord]) -> list[str]:
    """A sentence for each node that came; of many for the first ones."""
    said, lost = [], set[str]()
    for view in views:
        lost |= set(view.lost_nodes)
        said += [
            f"Node {node} {'came back' if node in lost else 'joined'} at step {view.step:,}."
            for node in view.joined_nodes
        ]
    return said[:MOST_NAMED]


def _describe_death(view: ViewRecord) -> str:
    who = listed([f"rank {rank} ({cause})" for rank, cause in zip(view.lost, view.causes, strict=True)])
    return f"{who} at step {view.step:,}"
