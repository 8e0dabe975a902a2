"""Whether a save fits into the time that a notice, or a cancel in Prefect, leaves.

Invariant: judged by what the run has measured and what the clouds document; before the first save there is no warning.
"""

import os
from collections.abc import Callable

from storage.runs.figures import read_figures
from storage.runs.run_state import RunState
from tasks.configuration.notices import NoticesConfig
from tasks.preemption.sources import open_sources
from tasks.text import duration, listed

# Seconds from a cancel until Prefect kills a deployment's flow run; no setting changes them. Its workers tell the
# process of a flow run, by this variable, which one it is.
CANCEL_SECONDS = 30.0
OF_A_WORKER = "PREFECT__FLOW_RUN_ID"


def warn_of_short_notice(config: NoticesConfig, warn: Callable[[str], None], state: RunState) -> None:
    """Warn if the ranks would need longer for the step under way and a save than the shortest notice leaves."""
    needed = _save_seconds(state), read_figures(state).step_seconds or 0.0
    short = [words for seconds, words in _times_left(config) if seconds < sum(needed)]
    if short:
        warn(_describe(short, *needed))


def _save_seconds(state: RunState) -> float:
    """From the beginning of a save until it is durable: the mean of the segment in which it took longest; 0 if none."""
    saves = [segment.saves for segment in state.segments if segment.saves is not None and segment.saves.count]
    return max((save.durable_seconds / save.count for save in saves), default=0.0)


def _times_left(config: NoticesConfig) -> list[tuple[float, str]]:
    """The seconds that each way to learn of the end leaves, where a source documents how many, and the source."""
    times = [
        (source.least_seconds, f"{source.name} announces at least {source.least_seconds:.0f} s ahead")
        for source in open_sources(config)
        if source.least_seconds is not None
    ]
    if OF_A_WORKER in os.environ:
        times.append((CANCEL_SECONDS, f"Prefect kills a flow run {CANCEL_SECONDS:.0f} s after its cancel"))
    return times


def _describe(short: list[str], save_seconds: float, step_seconds: float) -> str:
    return (
        "A save may not be complete in time when this process is asked to end: this run needed "
        f"{duration(save_seconds)} from the beginning of a save until it was durable, and {duration(step_seconds)} for "
        f"a step; {listed(short)}. The steps since the last checkpoint are then trained again. Save more often, so "
        "that they are fewer (checkpoint.every_seconds), or use a faster store. `holdfast stop RUN` leaves as long as "
        "a save takes."
    )
