"""A save under way, and what becomes of it when the ranks are others than those that began it.

Of the best model so far each rank also holds a copy of the share of another one, as its second holder: it writes that
where the other one died. Invariant: what follows is decided from what all ranks say of the save, and is the same
on all; each share is one rank's to write, whose description of it goes into the index.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from storage.checkpoints.checkpoints import CheckpointIndex
from training.checkpointing.state_hashes import StateHashes
from training.checkpointing.state_tensors import StateTensors
from training.checkpointing.writer import SavePart

NO_STEP = -1


class Phase(IntEnum):
    """State of a save beside training; between two boundaries the same on all ranks. A later one counts."""

    IDLE = 0
    FILES = 1
    DROPPED = 2  # it failed on some rank; the threads of others may still be writing
    INDEX = 3  # all files are in the store


@dataclass
class Save:
    """One save: of which state, in which files, and when it began; `num_parts` of the history's are in it.

    When it began this rank was the `rank` of `size`, none where it came later. `parts` are the shares that it writes
    beside training, by the number of the rank whose they were; `second` is what it holds for another one, whose share
    is `second_share`.
    """

    step: int
    validated_step: int | None
    path: str
    tensors: StateTensors
    hashes: StateHashes
    num_parts: int
    began: float
    rank: int
    size: int
    stall_seconds: float = 0.0
    parts: dict[int, SavePart] = field(default_factory=dict)
    second: SavePart | None = None
    second_share: int = -1
    index: CheckpointIndex | None = None  # once all files are in the store
    num_failures: int = 0
    can_be_repeated: bool = True  # all shares are held by somebody

    def tell(self) -> dict[str, Any]:
        """JSON-able: what a rank has to know of it that did not begin it, or has not come as far."""
        return {
            "step": self.step,
            "validated_step": self.validated_step,
            "num_parts": self.num_parts,
            "seconds_ago": time.perf_counter() - self.began,  # each machine has its own clock
            "stall_seconds": self.stall_seconds,
            "num_failures": self.num_failures,
            "index": None if self.index is None else self.index.model_dump(mode="json"),
        }

    def release(self) -> None:
        """Nothing of it is written any more."""
        self.parts, self.second = {}, None


class SaveStanding(NamedTuple):
    """What one rank has of the save under way; which rank it was, of how many, when that began.

    `second_share` is the share that it also holds; -1 if none. `completed_step` is that of the newest
    checkpoint of which it knows that it is complete.
    """

    phase: int = Phase.IDLE
    step: int = NO_STEP
    rank: int = -1
    size: int = 0
    second_share: int = -1
    is_beyond_repair: int = 0
    completed_step: int = NO_STEP


class Fate(NamedTuple):
    """What becomes of a save: it is complete, or let go, or lost; or it goes on in this `phase`; else there is none.

    Who goes on asks the rank `source` about it. `writers` has for each share the number of the rank that writes it,
    both as of when the save began; None if nobody holds one of them any more.
    """

    is_complete: bool = False
    is_let_go: bool = False
    is_lost: bool = False
    phase: Phase = Phase.IDLE
    source: int = -1
    writers: list[int] | None = None

    @property
    def goes_on(self) -> bool:
        """Whether it does."""
        return self.phase is not Phase.IDLE


def decide_fate(standings: Sequence[SaveStanding], have_state: Sequence[bool]) -> Fate:
    """What becomes of the save under way, by what each rank of the new view has of it, and whether it has a state.

    What one rank has done the others do, too: it has seen the end of the save, or has let it go, or has the index.
    """
    known = [rank for rank, one in enumerate(standings) if one.phase != Phase.IDLE and one.step != NO_STEP]
    if not known:
        return Fate(is_lost=any(one.phase != Phase.IDLE for one in standings))
    source = max(known, key=lambda rank: (standings[rank].phase, -rank))
    phase, step = Phase(standings[source].phase), standings[source].step
    if any(one.completed_step == step for one in standings):
        return Fate(is_complete=True)
    # Who is idle may not have begun the save yet; but before the weights were changed all had.
    had_all_begun = any(one.is_beyond_repair for one in standings)
    is_one_idle = any(has and one.phase == Phase.IDLE for one, has in zip(standings, have_state, strict=True))
    if phase is not Phase.INDEX and had_all_begun and is_one_idle:
        return Fate(is_let_go=True)
    writers = deal_shares([one for one in standings if one.phase != Phase.IDLE and one.step == step])
    if writers is None and phase is not Phase.INDEX:
        return Fate(is_lost=True)
    return Fate(phase=phase, source=source, writers=writers)


def deal_shares(holders: Sequence[SaveStanding]) -> list[int] | None:
    """Who writes each share: the rank whose it was; if that is gone, its second holder. None if one has no holder."""
    size = max(holder.size for holder in holders)
    second = {holder.second_share: holder.rank for holder in holders if holder.second_share >= 0}
    held = second | {holder.rank: holder.rank for holder in holders if holder.rank >= 0}
    return [held[share] for share in range(size)] if len(held) == size else None
