"""Who this rank is. Passed as a value, so that no logic asks a global for it."""

import socket
import time
from dataclasses import dataclass, field

from storage.runs.holders import process_age_seconds
from training.meeting import Meeting
from training.rank_status import StatusWriter


@dataclass(frozen=True)
class World:
    """One rank among `size`; `local_rank` is its number among the `local_size` of its machine, and its GPU.

    All of them meet at `meeting`. `launched_at` is when they were ordered, in seconds since boot; None where that
    is when this process began.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    rank_status: StatusWriter = field(default_factory=StatusWriter, compare=False)  # what this rank is at
    meeting: Meeting | None = field(default=None, compare=False)
    launched_at: float | None = field(default=None, compare=False)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def label(self) -> str:
        """This rank for people: where there are several machines, with the name of its own."""
        host = "" if self.local_size == self.size else f" on {socket.gethostname()}"
        return f"rank {self.rank}{host}"

    @property
    def ranks_here(self) -> range:
        """The ranks of this machine, which follow each other."""
        first = self.rank - self.local_rank
        return range(first, first + self.local_size)

    @property
    def age_seconds(self) -> float:
        """How long ago this rank was ordered."""
        if self.launched_at is None:
            return process_age_seconds()
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - self.launched_at)
