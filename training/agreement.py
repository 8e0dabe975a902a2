"""A few words at each step boundary, after which all ranks know the same.

Invariant: whatever depends on a clock or a signal (to stop, to save by time) is decided here and nowhere else. The
words travel as CPU integers, so no GPU is waited for; and along a tree: Gloo's all-reduce goes round a ring, which at
512 ranks are 1,022 messages one after the other, at every step, where the tree has 18.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, takewhile

import torch

from training.checkpointing.equality import wrong_sum
from training.checkpointing.writer import Writing
from training.collectives import receive, send
from training.rank_status import Collective
from training.stopping import StopFlag, StopReason
from training.world import World


@dataclass(frozen=True)
class BoundaryDecision:
    """What all ranks do at this boundary."""

    stop: StopReason
    save: bool
    writing: Writing
    view: int = 0  # the newest one; all leave the present one for it at the same boundary


class Agreement:
    """Compares the ranks' flags. The first rank's clock is the clock of the segment.

    `newest_view` gives the number of the newest view that this rank knows of, `wrong_step` the step in which it
    received a wrong sum, 0 if in none.
    """

    def __init__(
        self,
        world: World,
        flag: StopFlag,
        newest_view: Callable[[], int] = lambda: 0,
        wrong_step: Callable[[], int] = lambda: 0,
    ) -> None:
        self._world = world
        self._flag = flag
        self._newest_view = newest_view
        self._wrong_step = wrong_step

    def decide(self, save_is_due: bool = False, writing: Writing = Writing.DONE) -> BoundaryDecision:
        """A collective: every rank calls it at the same boundary and gets the same answer.

        `writing` is the state of the save under way on this rank. Raises `UnequalRanksError` on every rank alike if one
        of them received a wrong sum.
        """
        reason = self._flag.reason()
        if reason is StopReason.BUDGET and not self._world.is_first:
            reason = StopReason.NONE
        is_first = self._world.is_first
        view = self._newest_view() if is_first else 0
        words = torch.tensor([reason, int(save_is_due and is_first), writing, view, self._wrong_step()])
        _take_greatest(words, self._world)
        stop, save, most_busy, view, wrong_step = words.tolist()
        if wrong_step:
            raise wrong_sum(wrong_step, self._wrong_step() > 0, self._world)
        return BoundaryDecision(StopReason(stop), bool(save), Writing(most_busy), view)


def _take_greatest(words: torch.Tensor, world: World) -> None:
    """The greatest of all ranks, of each word: up the tree to the first rank, and from there down to all."""
    children = children_of(world.rank, world.size)
    theirs = torch.empty_like(words)
    with world.rank_status.waiting_for_ranks(Collective.BOUNDARY):
        for child in children:
            receive(theirs, child, world)
            torch.maximum(words, theirs, out=words)
        if not world.is_first:
            send(words, parent_of(world.rank), world)
            receive(words, parent_of(world.rank), world)
        for child in reversed(children):  # who has most below itself first
            send(words, child, world)


def parent_of(rank: int) -> int:
    """Parent of a rank in the binomial tree whose root is rank 0: without the lowest bit that is set.

    Of 2^k ranks that follow each other on a machine, only the first one's parent is on another.
    """
    return rank & (rank - 1)


def children_of(rank: int, size: int) -> list[int]:
    """Those whose parent this rank is, nearest first."""
    reach = rank & -rank if rank > 0 else size
    distances = takewhile(lambda distance: distance < reach and rank + distance < size, (1 << k for k in count()))
    return [rank + distance for distance in distances]
