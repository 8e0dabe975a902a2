"""Loss spikes: steps, one after the other, whose losses are all far above those of the window before.

"Far" is measured by median and median absolute deviation (Rousseeuw and Croux, "Alternatives to the median absolute
deviation", JASA 1993), which a few wild losses do not move. Invariant: whether a step completes a spike follows from
the losses of that step and of the `window + consecutive - 1` before it alone, so neither an interruption nor the moment
of looking changes what is found, or where. Those losses are the state.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from storage.runs.run_state import Divergence
from training.configuration import DivergenceConfig
from training.optim.divergence import DivergedError

# The median absolute deviation of a normal distribution, as a part of its standard deviation, is 1 / 1.4826.
SIGMAS_PER_DEVIATION = 1.4826
# A model that has learnt its data by heart has losses next to nothing, with a spread that is nothing at all: what
# counts is a rise that matters beside where training began.
LEAST_SIGMA_SHARE = 0.02


@dataclass(frozen=True)
class Level:
    """What losses are held against: the window's median and spread, and the loss above which a step is suspicious."""

    median: float
    sigma: float
    threshold: float


def level_of(window: Sequence[float], first_loss: float, sigmas: float) -> Level:
    """The level of a window of losses, in a run whose first point of the loss curve was `first_loss`."""
    median = float(np.median(window))
    deviation = float(np.median(np.abs(np.asarray(window) - median)))
    sigma = max(SIGMAS_PER_DEVIATION * deviation, LEAST_SIGMA_SHARE * abs(first_loss))
    return Level(median, sigma, median + sigmas * sigma)


def find_spike(losses: Sequence[float], first_loss: float, config: DivergenceConfig) -> Level | None:
    """The level that the last `consecutive_steps` of the losses all exceed, or None if one of them does not.

    None as well where there are too few losses before them for a window.
    """
    suspects = losses[-config.consecutive_steps :]
    window = losses[-config.consecutive_steps - config.window_steps : -config.consecutive_steps]
    if len(window) < config.window_steps:
        return None
    # The threshold is not below the median: this ends nearly every look, for a fiftieth of the time.
    if min(suspects) <= sorted(window)[(len(window) - 1) // 2]:
        return None
    level = level_of(window, first_loss, config.spike_sigmas)
    return level if min(suspects) > level.threshold else None


class SpikeWatch:
    """Looks at each step's loss in turn."""

    def __init__(self, config: DivergenceConfig) -> None:
        self._config = config
        self._recent: list[float] = []

    def look(self, step: int, loss: float, first_loss: float | None) -> None:
        """Take in the loss of `step`, counted from 1. Raises `DivergedError` if it completes a spike.

        `first_loss` is the first point of the run's loss curve; before it is known there is no spike.
        """
        config = self._config
        self._recent = [*self._recent, loss][-(config.window_steps + config.consecutive_steps) :]
        level = find_spike(self._recent, first_loss, config) if config.spikes and first_loss is not None else None
        if level is not None:
            raise _diverged(step, loss, level, config)

    def state_dict(self) -> list[float]:
        """JSON-able: the losses that the next looks need."""
        return self._recent

    def load_state_dict(self, state: Sequence[float]) -> None:
        self._recent = [float(loss) for loss in state]


def _diverged(step: int, loss: float, level: Level, config: DivergenceConfig) -> DivergedError:
    first = step - config.consecutive_steps + 1
    message = (
        f"The loss rose suddenly at step {first} and stayed high up to step {step}, where it is {loss:.4g}: above "
        f"{level.threshold:.4g} in each of {config.consecutive_steps} steps, which is {config.spike_sigmas:g} robust "
        f"standard deviations of {level.sigma:.3g} above the median of the {config.window_steps} steps before, "
        f"{level.median:.4g}."
    )
    evidence = Divergence(
        kind="spike", step=step, value=loss, median=level.median, sigma=level.sigma, threshold=level.threshold
    )
    return DivergedError(message, evidence)
