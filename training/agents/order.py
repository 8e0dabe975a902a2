"""What an agent is told: which ranks of which segment are its own, and where all ranks meet.

Invariant: a rank's number, and how many there are, are values that begin here; no variable of the environment says it.
"""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from training.meeting import Meeting
from training.world import World

ORDER_NAME = "agent.json"


class AgentOrder(BaseModel):
    """Work for an agent. It lies in the segment's folder on this machine, where all that ranks leave is, too."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    specification: Path
    first_rank: int
    local_size: int
    world_size: int = Field(description="Ranks with which the segment began.")
    first_life: int = Field(
        0, description="With which the ranks begin: from 1 on they join others that train, and meet nobody before."
    )
    meeting: Meeting
    grace_seconds: float
    launched_at: float = Field(description="When the order was given, in seconds since boot.")
    most_deaths: int = Field(3, description="Within ten minutes, after which a rank is not begun again.")

    @property
    def folder(self) -> Path:
        return self.specification.parent

    @property
    def is_alone(self) -> bool:
        """Whether all ranks are this node's."""
        return self.local_size == self.world_size

    def world_of(self, local_rank: int, life: int = 0) -> World:
        """The world of a rank of this node; from its second `life` on it belongs to none yet."""
        rank = self.first_rank + local_rank
        world = World(
            rank,
            self.world_size,
            local_rank,
            self.local_size,
            meeting=self.meeting,
            launched_at=self.launched_at,
            life=life,
        )
        if life > 0:
            world.leave()
        return world
