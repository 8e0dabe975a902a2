"""Who this rank is. Passed as a value, so that no logic asks a global for it."""

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class World:
    """One rank among `size`; `local_rank` is its place on its machine and its GPU."""

    rank: int
    size: int
    local_rank: int

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def read_world() -> World:
    """The world as the launcher describes it in the environment, by torchrun's names. For entry points alone."""
    return World(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"]))
