"""What steps gave, on the device until it is read; the same on every rank.

Invariant: each microbatch's loss stands by itself, so neither the moment of reading nor the number of ranks matters.
Reading makes the CPU wait for the GPU.
"""

import torch
from torch import Tensor

from training.gradients.fixed_point import NUM_TALLIES

# Behind the losses: the tallies, and the norm of the gradient.
NUM_BEHIND = NUM_TALLIES + 1


class StepFigures:
    """The microbatches' losses, the tallies and the gradient's norm of the steps since they were last taken."""

    def __init__(self) -> None:
        self._on_device: list[Tensor] = []

    def add(self, figures: Tensor) -> None:
        """What `Trainer.take_step` gave: fp64 [microbatches + 3], on the device."""
        self._on_device.append(figures)

    def take(self) -> list[tuple[Tensor, list[float], float]]:
        """Figures of each step since the last call: losses [microbatches], tallies, norm."""
        if not self._on_device:
            return []
        figures = torch.stack(self._on_device).cpu()
        self._on_device.clear()
        losses, tallies, norms = figures[:, :-NUM_BEHIND], figures[:, -NUM_BEHIND:-1], figures[:, -1]
        return list(zip(losses, tallies.tolist(), norms.tolist(), strict=True))
