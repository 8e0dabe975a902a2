"""What steps gave, on the device until it is read, and then the same on every rank.

Invariant: each leaf's loss travels by itself, so neither the moment of reading nor the number of ranks matters. Reading
makes the CPU wait for the GPU.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from training.pulse import Collective
from training.sums.fixed_point import NUM_TALLIES
from training.world import World


class StepFigures:
    """The leaves' losses and the tallies of the steps since they were last taken."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._on_device: list[Tensor] = []

    def add(self, figures: Tensor) -> None:
        """What `Trainer.take_step` gave: fp64 [leaves + 2], on the device."""
        self._on_device.append(figures)

    def take(self) -> list[tuple[Tensor, list[float]]]:
        """For each step since the last call the losses of all leaves [leaves], and the tallies. A collective."""
        if not self._on_device:
            return []
        figures = torch.stack(self._on_device).cpu()
        self._on_device.clear()
        losses, tallies = figures[:, :-NUM_TALLIES].contiguous(), figures[:, -NUM_TALLIES:]
        if self._world.size > 1:
            # Each leaf's loss is one rank's and zero on all others: nothing is rounded. Tallies are all ranks' already.
            with self._world.pulse.waiting_for_ranks(Collective.LOSSES):
                dist.all_reduce(losses)
        return list(zip(losses, tallies.tolist(), strict=True))
