"""The loss curve: the mean loss of every `every_steps` steps, the same however often the run was interrupted.

Invariant: each leaf's loss is kept by itself until all are there, and then added in a fixed order, so that neither the
moment when that is done nor the number of ranks matters. Losses stay on the device until a point is due: reading them
makes the CPU wait for the GPU. What went wrong is found when they are read, and is the same whenever that is: the first
step that did.
"""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from storage.runs.run_state import Divergence
from training.configuration import DivergenceConfig
from training.divergence import DivergedError
from training.sums.fixed_point import LARGEST, NUM_TALLIES
from training.watching.spikes import SpikeWatch
from training.world import World


class LossCurve:
    """Points (step, mean loss, learning rate)."""

    def __init__(self, world: World, every_steps: int, divergence: DivergenceConfig) -> None:
        self.points: list[tuple[int, float, float]] = []
        self._world = world
        self._every_steps = every_steps
        self._spikes = SpikeWatch(divergence)
        self.num_rounded_away = 0
        self._on_device: list[Tensor] = []
        self._pending: list[float] = []

    def record(self, step: int, figures: Tensor, learning_rate: float) -> None:
        """Note what `take_step` gave for `step` (counted from 1). A collective when a point is due."""
        self._on_device.append(figures)
        if step % self._every_steps == 0:
            self.collect(step)
            self.points.append((step, math.fsum(self._pending) / len(self._pending), learning_rate))
            self._pending.clear()

    def collect(self, step: int) -> None:
        """Bring together what the ranks hold. A collective. Raises `DivergedError` on every rank alike."""
        if not self._on_device:
            return
        figures = torch.stack(self._on_device).cpu()
        self._on_device.clear()
        losses, tallies = figures[:, :-NUM_TALLIES].contiguous(), figures[:, -NUM_TALLIES:]
        if self._world.size > 1:
            # Each leaf's loss is one rank's and zero on all others: nothing is rounded. Tallies are all ranks' already.
            dist.all_reduce(losses)
        self.num_rounded_away += int(tallies[:, 1].sum())
        for number, (leaves, outside) in enumerate(
            zip(losses, tallies[:, 0].tolist(), strict=True), step - len(losses)
        ):
            self._take_in(number + 1, leaves, outside)

    def _take_in(self, step: int, leaves: Tensor, num_outside: float) -> None:
        """The losses of one step, in its turn: what went wrong first counts, and not what followed from it."""
        _require_finite(step, leaves, num_outside)
        loss = math.fsum(leaves.tolist())
        self._spikes.look(step, loss, self.points[0][1] if self.points else None)
        self._pending.append(loss)

    @property
    def last(self) -> float | None:
        return self.points[-1][1] if self.points else None

    def state_dict(self) -> dict[str, Any]:
        """JSON-able. Call `collect` before."""
        return {
            "points": self.points,
            "pending": self._pending,
            "recent": self._spikes.state_dict(),
            "rounded_away": self.num_rounded_away,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.points = [(int(step), float(loss), float(rate)) for step, loss, rate in state["points"]]
        self._pending = [float(loss) for loss in state["pending"]]
        self._spikes.load_state_dict(state["recent"])
        self.num_rounded_away = int(state["rounded_away"])


def _require_finite(step: int, leaves: Tensor, num_outside: float) -> None:
    """Raise `DivergedError` if a leaf's loss, or a gradient, is nothing to go on from."""
    if not bool(leaves.isfinite().all()):
        found = leaves[~leaves.isfinite()][0].item()
        evidence = Divergence(kind="loss", step=step)
        raise DivergedError(f"The loss became {found} at step {step}.", evidence)
    if num_outside:
        raise DivergedError(
            f"At step {step} a leaf's gradient was not finite, or larger than the {LARGEST:,.0f} that the exact sum "
            "can hold.",
            Divergence(kind="gradient", step=step),
        )
