"""The loss curve: the mean loss of every `every_steps` steps, the same however often the run was interrupted.

Invariant: losses are added over ranks step by step, and over steps in their order, so that it does not matter when the
sums are taken. They stay on the device until a point is due: reading them makes the CPU wait for the GPU.
"""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from training.world import World


class NonFiniteLossError(ArithmeticError):
    """The loss became NaN or infinite: the run has diverged."""


class LossCurve:
    """Points (step, mean loss, learning rate)."""

    def __init__(self, world: World, every_steps: int) -> None:
        self.points: list[tuple[int, float, float]] = []
        self._world = world
        self._every_steps = every_steps
        self._on_device: list[Tensor] = []
        self._pending: list[float] = []

    def record(self, step: int, loss: Tensor, learning_rate: float) -> None:
        """Note this rank's share of the loss of `step` (counted from 1). A collective when a point is due."""
        self._on_device.append(loss)
        if step % self._every_steps == 0:
            self.collect(step)
            self.points.append((step, math.fsum(self._pending) / len(self._pending), learning_rate))
            self._pending.clear()

    def collect(self, step: int) -> None:
        """Add up what the ranks hold. A collective. Raises `NonFiniteLossError` on every rank alike."""
        if not self._on_device:
            return
        losses = torch.stack(self._on_device).double().cpu()
        self._on_device.clear()
        if self._world.size > 1:
            dist.all_reduce(losses)
        self._pending += losses.tolist()
        if not all(math.isfinite(loss) for loss in self._pending):
            raise NonFiniteLossError(
                f"The loss became {next(x for x in self._pending if not math.isfinite(x))} at or before step {step}. "
                "Lower train.learning_rate or train.clip_norm, or look for bad samples."
            )

    @property
    def last(self) -> float | None:
        return self.points[-1][1] if self.points else None

    def state_dict(self) -> dict[str, Any]:
        """JSON-able. Call `collect` before."""
        return {"points": self.points, "pending": self._pending}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.points = [(int(step), float(loss), float(rate)) for step, loss, rate in state["points"]]
        self._pending = [float(loss) for loss in state["pending"]]
