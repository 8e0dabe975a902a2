"""One small all-reduce at each step boundary, after which all ranks know the same.

Invariant: whatever depends on a clock or a signal (to stop, to save by time) is decided here and nowhere else. The
words travel as CPU integers, so no GPU is waited for.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from training.saving.writer import Writing
from training.stopping import StopFlag, StopReason
from training.world import World


@dataclass(frozen=True)
class BoundaryDecision:
    """What all ranks do at this boundary."""

    stop: StopReason
    save: bool
    writing: Writing


class Agreement:
    """Compares the ranks' flags. The first rank's clock is the clock of the segment."""

    def __init__(self, world: World, flag: StopFlag) -> None:
        self._world = world
        self._flag = flag

    def decide(self, save_is_due: bool = False, writing: Writing = Writing.DONE) -> BoundaryDecision:
        """A collective: every rank calls it at the same boundary and gets the same answer.

        `writing` is what this rank says of the save under way.
        """
        reason = self._flag.reason()
        if reason is StopReason.BUDGET and not self._world.is_first:
            reason = StopReason.NONE
        words = torch.tensor([reason, int(save_is_due and self._world.is_first), writing])
        if self._world.size > 1:
            dist.all_reduce(words, op=dist.ReduceOp.MAX)
        stop, save, most_busy = words.tolist()
        return BoundaryDecision(StopReason(stop), bool(save), Writing(most_busy))
