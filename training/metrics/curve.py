"""The loss curve: the mean loss of every `every_steps` steps, the same however often the run was interrupted.

Invariant: the microbatches' losses of a step are added in a fixed order once all are there, so neither the moment when
that is done nor the number of ranks matters. What went wrong is found when they are read, and is the same whenever that
is: the first step that did.
"""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from storage.runs.metric_values import MetricValue, metric_value
from training.configuration import DivergenceConfig
from training.gradients.fixed_point import OUTSIDE, ROUNDED_AWAY
from training.metrics.spikes import SpikeWatch
from training.metrics.step_figures import StepFigures
from training.optim.divergence import DivergedError, require_finite


class LossCurve:
    """Points (step, mean loss, learning rate), and beside them the norm of the gradient at the step of each."""

    def __init__(self, every_steps: int, divergence: DivergenceConfig) -> None:
        self.points: list[tuple[int, float, float]] = []  # those that are not in a part of the history
        self.norms: list[tuple[int, MetricValue]] = []  # (step, norm before it was clipped), as above
        # What all ranks do before they raise `DivergedError`, after the step that is given, counted from 1.
        self.before_divergence: Callable[[int], None] = lambda step: None
        self.first_loss: float | None = None  # of the run's first point, wherever that is
        self._every_steps = every_steps
        self._spikes = SpikeWatch(divergence)
        self.num_rounded_away = 0
        self._figures = StepFigures()
        self._pending: list[float] = []
        self._last_norm = math.nan

    def record(self, step: int, figures: Tensor, learning_rate: float) -> None:
        """Note what `take_step` gave for `step` (counted from 1)."""
        self._figures.add(figures)
        if step % self._every_steps == 0:
            self.collect(step)
            loss = math.fsum(self._pending) / len(self._pending)
            self.first_loss = loss if self.first_loss is None else self.first_loss
            self.points.append((step, loss, learning_rate))
            self.norms.append((step, metric_value(self._last_norm)))
            self._pending.clear()

    def collect(self, step: int) -> None:
        """Read what steps up to `step` gave. A collective. Raises `DivergedError` on every rank alike."""
        try:
            self.read(step)
        except DivergedError as diverged:  # on every rank alike, so a collective may follow
            try:
                self.before_divergence(step)
            except RuntimeError as lost:  # a rank died meanwhile: what the step gave is true without it
                raise diverged from lost
            raise

    def read(self, step: int) -> None:
        """Read it as one rank by itself. Raises `DivergedError`."""
        taken = self._figures.take()
        for number, (losses, tallies, norm) in enumerate(taken, step - len(taken) + 1):
            require_finite(number, losses, tallies[OUTSIDE])
            loss = math.fsum(losses.tolist())
            self._spikes.look(number, loss, self.first_loss)
            self._pending.append(loss)
            self._last_norm = norm
            self.num_rounded_away += int(tallies[ROUNDED_AWAY])

    @property
    def last(self) -> float | None:
        return self.points[-1][1] if self.points else None

    def state_dict(self) -> dict[str, Any]:
        """JSON-able. Call `collect` before."""
        return {
            "points": self.points,
            "norms": self.norms,
            "first_loss": self.first_loss,
            "pending": self._pending,
            "recent": self._spikes.state_dict(),
            "rounded_away": self.num_rounded_away,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._figures.take()  # of steps that are another state's
        self.points = [(int(step), float(loss), float(rate)) for step, loss, rate in state["points"]]
        self.norms = [(int(step), norm) for step, norm in state["norms"]]
        self.first_loss = state["first_loss"]
        self._pending = [float(loss) for loss in state["pending"]]
        self._spikes.load_state_dict(state["recent"])
        self.num_rounded_away = int(state["rounded_away"])
