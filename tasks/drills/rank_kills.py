"""One rank of a start is killed alone, and how the run goes on after that.

Invariant: that the others trained on is what the segment's own account of its ranks says, in scratch or, when the run
has ended, in the manifest. A newer segment says that they did not.
"""

import contextlib
import os
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from storage.runs.run_records import ViewTotals
from tasks.run_paths import RunPaths
from tasks.supervision.following import RunFollower
from tasks.text import count_of
from training.agents.locks import find_holders
from training.metrics.reporter import Report
from training.views.account import all_views, describe_views
from training.views.folder import ViewFolder


@dataclass(frozen=True)
class RankKill:
    """One SIGKILL for one rank. `step` is the last one that the ranks had reported.

    `trained_on`: the others did, in the same segment.
    """

    step: int
    rank: int
    world_size: int
    fence: int
    trained_on: bool


class RankKiller:
    """Kills one rank of a start, once, from step `aim` on; nobody if `aim` is None."""

    def __init__(self, follower: RunFollower, run_paths: RunPaths, world_size: int, aim: int | None) -> None:
        self._follower, self._run_paths, self._world_size, self._aim = follower, run_paths, world_size, aim
        self._killed: RankKill | None = None  # as long as it is not known how the run goes on
        self.kill: RankKill | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a rank was killed, and it is not known yet how the run goes on."""
        return self._killed is not None

    def see(self, report: Report) -> None:
        """What the follower has read: kills if the aim is met, and later notes how the run went on."""
        fence, first_step = self._follower.fence, self._follower.first_step
        if self._killed is not None:
            self._conclude(fence)
        elif self._aim is None or fence is None or first_step is None:
            return
        elif report.step > first_step and report.step >= self._aim:
            self._kill_one(report.step, fence)

    def end(self) -> None:
        """The command has trained to the last step, and its folders are gone: the manifest has the account."""
        if (killed := self._killed) is None:
            return
        segments = self._run_paths.manifest.load_head().state.segments
        totals = next((one.view_totals for one in segments if one.fence == killed.fence), None)
        self._note(_has_died(totals))

    def _kill_one(self, step: int, fence: int) -> None:
        folder = self._run_paths.segment_scratch(fence)
        ranks = [(one.rank, one.pid) for one in find_holders(folder) if one.rank is not None]
        if len(ranks) < self._world_size:
            return  # they are just coming, or leaving: at the next report
        rank, pid = random.Random(f"{self._aim} {step}").choice(ranks)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self._killed, self._aim = RankKill(step, rank, self._world_size, fence, trained_on=False), None

    def _conclude(self, fence: int | None) -> None:
        assert self._killed is not None
        if fence != self._killed.fence:
            self._note(trained_on=False)
        elif _has_died(describe_views(all_views(ViewFolder(self._run_paths.segment_scratch(fence)))).totals):
            self._note(trained_on=True)

    def _note(self, trained_on: bool) -> None:
        assert self._killed is not None
        killed, self._killed = self._killed, None
        self.kill = RankKill(killed.step, killed.rank, killed.world_size, killed.fence, trained_on)


def describe_rank_kills(kills: Sequence[RankKill]) -> str | None:
    """How the run went on after them, in a sentence; None where no rank was killed alone."""
    if not kills:
        return None
    survived = sum(kill.trained_on for kill in kills)
    text = f"One rank alone was killed {count_of(len(kills), 'time')}"
    on, ended = (
        "the others trained on in the same segment",
        "the segment ended, and the next one went on from the promoted checkpoint",
    )
    if survived in (0, len(kills)):
        return f"{text}: {on if survived else ended}."
    return f"{text}: {count_of(survived, 'time')} {on}, {count_of(len(kills) - survived, 'time')} {ended}."


def _has_died(totals: ViewTotals | None) -> bool:
    return totals is not None and totals.num_lost > 0
