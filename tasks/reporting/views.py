"""What a segment's record says of ranks that died while the others trained on, in words.

Invariant: pure functions of the records.
"""

from collections.abc import Sequence

from storage.runs.run_records import ViewRecord
from tasks.text import count_of, listed

MOST_NAMED = 3


def describe_views(views: Sequence[ViewRecord]) -> str | None:
    """One sentence, or two; None where no rank died."""
    deaths = [view for view in views if view.lost]
    if not deaths:
        return None
    num_died, num_joined = sum(len(view.lost) for view in deaths), sum(len(view.joined) for view in views)
    named = [_describe_death(view) for view in deaths[:MOST_NAMED]]
    others = [] if len(deaths) <= MOST_NAMED else [f"{len(deaths) - MOST_NAMED:,} times more"]
    longest = max(view.seconds for view in deaths)
    return (
        f"{count_of(num_died, 'rank')} died and the others trained on from the same step: {listed([*named, *others])}; "
        f"the longest pause was {longest:.1f} s. {count_of(num_joined, 'rank')} joined in their place."
    )


def _describe_death(view: ViewRecord) -> str:
    who = listed([f"rank {rank} ({cause})" for rank, cause in zip(view.lost, view.causes, strict=True)])
    return f"{who} at step {view.step:,}"
