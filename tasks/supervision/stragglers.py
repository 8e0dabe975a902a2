"""What makes ranks wait for each other though all of them get on: a slow one among them, or the network.

Invariant: judged over a minute and by the ranks' own clocks; each is reported once in a segment.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from tasks.text import listed
from training.rank_status import Phase, RankStatus

WINDOW_SECONDS = 60.0
LEAST_STEPS = 10
SLOWER = 1.5  # than the rank in the middle, for a microbatch
WORSE = 3.0  # than the least that the ranks' messages took before
WORTH_A_WORD = 0.2  # of the others' time


@dataclass(frozen=True)
class _Window:
    """What one rank did between two looks: in total, and of it for each microbatch or step."""

    rank_status: RankStatus
    seconds: float
    num_steps: int
    seconds_for_microbatch: float
    seconds_waited: float

    @property
    def share_waited(self) -> float:
        return self.seconds_waited / self.seconds

    @property
    def seconds_waited_for_step(self) -> float:
        return self.seconds_waited / self.num_steps


class Stragglers:
    """The stragglers among the ranks of one segment."""

    def __init__(self) -> None:
        self._before: dict[int, RankStatus] = {}
        self._look_at = 0.0
        self._least_transfer: float | None = None
        self._reported: set[int | None] = set()  # ranks, and None for the network

    def is_due(self) -> bool:
        """Whether it is time for another look."""
        return time.monotonic() >= self._look_at

    def look(self, rank_statuses: Sequence[RankStatus]) -> list[str]:
        """Warnings about ranks that were slow since the last look."""
        self._look_at = time.monotonic() + WINDOW_SECONDS
        before, self._before = self._before, {rank_status.rank: rank_status for rank_status in rank_statuses}
        windows = [
            _window(before[rank_status.rank], rank_status)
            for rank_status in rank_statuses
            if rank_status.rank in before and before[rank_status.rank].pid == rank_status.pid  # else it is another one
        ]
        if len(windows) < 2 or min(window.num_steps for window in windows) < LEAST_STEPS:
            return []
        remarks = [self._find_straggler(windows), self._find_slow_network(windows)]
        return [remark for remark in remarks if remark is not None]

    def _find_straggler(self, windows: Sequence[_Window]) -> str | None:
        """The rank that waits least for the others, if it is much slower than the one in the middle."""
        slowest = min(windows, key=lambda window: window.seconds_waited)
        typical = median_low(window.seconds_for_microbatch for window in windows)
        wait = median_low(window.share_waited for window in windows if window is not slowest)
        is_slow = slowest.seconds_for_microbatch > SLOWER * typical and wait > WORTH_A_WORD
        if not is_slow or slowest.rank_status.rank in self._reported:
            return None
        self._reported.add(slowest.rank_status.rank)
        return (
            f"Rank {slowest.rank_status.rank} on {slowest.rank_status.host} is slower than the others: it computes a "
            f"microbatch in {slowest.seconds_for_microbatch:.3g} s, the rank in the middle in {typical:.3g} s. The "
            f"others wait for {wait:.0%} of their time. Look at what else runs there, and at the clock and temperature "
            "of its GPU."
        )

    def _find_slow_network(self, windows: Sequence[_Window]) -> str | None:
        """The rank that comes last waits for the messages alone: more of it than before is the network's."""
        last = min(windows, key=lambda window: window.seconds_waited)
        transfer = last.seconds_waited_for_step
        least = min(transfer, self._least_transfer or transfer)
        self._least_transfer = least
        if transfer <= WORSE * least or last.share_waited <= WORTH_A_WORD or None in self._reported:
            return None
        self._reported.add(None)
        hosts = sorted({window.rank_status.host for window in windows})
        between = f" between {listed(hosts)}" if len(hosts) > 1 else ""
        return (
            f"What the ranks send each other takes {transfer:.3g} s of each step, {last.share_waited:.0%} of the time; "
            f"earlier in this segment it was {least:.3g} s. The network{between} has become slower; it is not broken."
        )


def _window(before: RankStatus, now: RankStatus) -> _Window:
    spent: Mapping[Phase, float] = {
        phase: seconds - before.spent.get(phase, 0.0) for phase, seconds in now.spent.items()
    }
    return _Window(
        rank_status=now,
        seconds=max(sum(spent.values()), 1e-9),
        num_steps=now.step - before.step,
        seconds_for_microbatch=spent.get(Phase.COMPUTING, 0.0) / max(1, now.microbatches - before.microbatches),
        seconds_waited=spent.get(Phase.OTHERS, 0.0),
    )
