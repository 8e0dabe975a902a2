"""What a segment's record says of ranks that died while the others trained on, in words.

Invariant: pure functions of the records.
"""

from collections.abc import Sequence

from storage.runs.run_records import ViewRecord, ViewTotals
from tasks.text import count_of, listed

MOST_NAMED = 3


def describe_views(views: Sequence[ViewRecord], totals: ViewTotals | None) -> str | None:
    """Some sentences; None where no rank died. `views` may leave out some of those that `totals` count."""
    if totals is None or not totals.num_lost:
        return None
    deaths = [view for view in views if view.lost][:MOST_NAMED]
    num_others = totals.num_lost - sum(len(view.lost) for view in deaths)
    named = [_describe_death(view) for view in deaths]
    others = [f"{count_of(num_others, 'more death')}"] if num_others else []
    return (
        f"{count_of(totals.num_lost, 'rank')} died and the others trained on from the same step: "
        f"{listed([*named, *others])}; the longest pause was {totals.longest_seconds:.1f} s. "
        f"{count_of(totals.num_joined, 'rank')} joined in their place.{_describe_out(totals.stay_out)}"
    )


def _describe_out(ranks: Sequence[int]) -> str:
    if not ranks:
        return ""
    who = f"rank{'s' if len(ranks) > 1 else ''} {listed([str(rank) for rank in ranks], most=len(ranks))}"
    fewer = count_of(len(ranks), "rank")
    return f" {who[0].upper()}{who[1:]} died so often that none was begun again: the rest trained with {fewer} fewer."


def _describe_death(view: ViewRecord) -> str:
    who = listed([f"rank {rank} ({cause})" for rank, cause in zip(view.lost, view.causes, strict=True)])
    return f"{who} at step {view.step:,}"
