"""Who this rank is. Passed as a value, so that no logic asks a global for it.

Invariant: which ranks there are changes between two steps alone, when training goes on with others (`enter`); so what
follows from a rank's number, or from how many there are, is asked of the world when it is needed.
"""

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from storage.runs.holders import process_age_seconds
from training.meeting import Meeting
from training.places import Place
from training.rank_status import StatusWriter


@dataclass
class World:
    """One rank among `size`; `local_rank` is its number among the `local_size` of its machine, and its GPU.

    All of them meet at `meeting`, and talk in `group`, torch's process group, from then on. `launched_at` is when they
    were ordered, in seconds since boot; None where that is when this process began. `slot` is the number that the rank
    was begun with: its files have it, and people know the rank by it. Of the processes that were begun with one number
    it is the one with this `life`: from 1 on, it is to join others that train. `slots_here` are the numbers with which
    ranks of its machine are begun, and `full_size` is how many ranks there are when none is missing. `view` is the
    number of the view that it is in.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    rank_status: StatusWriter = field(default_factory=StatusWriter, compare=False)  # what this rank is at
    place: Place = field(default_factory=Place, compare=False)  # at which microbatch it is
    meeting: Meeting | None = field(default=None, compare=False)
    launched_at: float | None = field(default=None, compare=False)
    group: Any = field(default=None, compare=False)
    slot: int = -1
    life: int = 0
    view: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if self.slot < 0:
            self.slot = self.rank
        self.full_size = self.size
        self.slots_here = range(self.slot - self.local_rank, self.slot - self.local_rank + self.local_size)

    def enter(self, slots: Sequence[int], group: Any, view: int = 0) -> None:
        """Be one of the ranks that were begun with these numbers from now on."""
        here = [slot for slot in slots if slot in self.slots_here]
        self.rank, self.size = slots.index(self.slot), len(slots)
        self.local_rank, self.local_size = here.index(self.slot), len(here)
        self.group, self.view = group, view

    def leave(self) -> None:
        """Belong to no ranks: to send nothing, and to be the first of none."""
        self.rank, self.size, self.local_size, self.group = -1, 1, 1, None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_member(self) -> bool:
        """Whether it is among ranks that train; one that is to join them is not yet, and its number is negative."""
        return self.rank >= 0

    @property
    def numbers(self) -> list[int]:
        """What another process of this rank makes the same world of."""
        return [self.rank, self.size, self.local_rank, self.local_size]

    @property
    def label(self) -> str:
        """This rank for people: where there are several machines, with the name of its own."""
        host = "" if len(self.slots_here) == self.full_size else f" on {socket.gethostname()}"
        return f"rank {self.slot}{host}"

    @property
    def ranks_here(self) -> range:
        """The ranks of this machine, which follow each other."""
        first = self.rank - self.local_rank
        return range(first, first + self.local_size)

    @property
    def second_holder_of(self) -> int:
        """Of which rank this one holds a second copy: of one on another machine, where there is one; else the next."""
        num_here = len(self.slots_here)
        return (self.rank + (num_here if num_here < self.size else 1)) % self.size

    @property
    def age_seconds(self) -> float:
        """How long ago this rank was ordered."""
        if self.launched_at is None:
            return process_age_seconds()
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - self.launched_at)
