"""Who this rank is. Passed as a value, so that no logic asks a global for it."""

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from training.rank_status import StatusWriter

RENDEZVOUS_VARIABLE = "HOLDFAST_RENDEZVOUS_FILE"


@dataclass(frozen=True)
class World:
    """One rank among `size`; `local_rank` is its number among the `local_size` of its machine, and its GPU.

    All ranks on one machine meet in `rendezvous_file`; over several, at torchrun's address.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    rank_status: StatusWriter = field(default_factory=StatusWriter, compare=False)  # what this rank is at
    rendezvous_file: Path | None = field(default=None, compare=False)

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


def read_world() -> World:
    """The world as the launcher describes it in the environment, by torchrun's names. For entry points alone."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    rank, size, local_rank, local_size = (int(os.environ[name]) for name in names)
    rendezvous_file = os.environ.get(RENDEZVOUS_VARIABLE)
    return World(rank, size, local_rank, local_size, rendezvous_file=Path(rendezvous_file) if rendezvous_file else None)
