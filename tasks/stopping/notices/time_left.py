"""Whether a save fits into the time that a notice leaves.

Invariant: said from what the run has measured and what the clouds document; before the first save nothing is said.
"""

from collections.abc import Callable

from storage.runs.run_state import RunState
from tasks.advice.figures import read_figures
from tasks.pages.words import duration, listed
from tasks.stopping.notices.configuration import NoticesConfig
from tasks.stopping.notices.notice import NoticeSource
from tasks.stopping.notices.sources import open_sources


def warn_of_short_notice(config: NoticesConfig, warn: Callable[[str], None], state: RunState) -> None:
    """Say so if the ranks would need longer for the step under way and a save than the shortest notice leaves."""
    needed = _save_seconds(state), read_figures(state).step_seconds or 0.0
    short = [source for source in open_sources(config) if _is_short(source, sum(needed))]
    if short:
        warn(_describe(short, *needed))


def _save_seconds(state: RunState) -> float:
    """From the beginning of a save until it is durable: the mean of the segment in which it took longest; 0 if none."""
    saves = [segment.saves for segment in state.segments if segment.saves is not None and segment.saves.count]
    return max((save.durable_seconds / save.count for save in saves), default=0.0)


def _is_short(source: NoticeSource, seconds: float) -> bool:
    return source.least_seconds is not None and source.least_seconds < seconds


def _describe(short: list[NoticeSource], save_seconds: float, step_seconds: float) -> str:
    left = listed(f"{source.name} announces at least {source.least_seconds:.0f} s ahead" for source in short)
    return (
        f"At a notice a save may not be complete in time: this run needed {duration(save_seconds)} from the beginning "
        f"of a save until it was durable, and {duration(step_seconds)} for a step; {left}. The steps since the last "
        "checkpoint are then trained again. Save more often, so that they are fewer (checkpoint.every_seconds), or use "
        "a faster store."
    )
