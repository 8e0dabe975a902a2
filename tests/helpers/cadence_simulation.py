"""The cadence of an advice played through, run by run: interruptions are drawn, and what each one takes is added up.

Invariant: the same model as `tasks.advice.cadence`, and none of its formulas; the same arguments give the same figures.
Beside it stand the formulas of Young and Daly, which hold for simpler models.
"""

from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

import numpy as np

from tasks.advice.cadence import Costs, Rates

MONTH_SECONDS = 30 * 86_400.0
# Where interruptions come by the minute a shorter cycle says as much as a month.
MAX_INTERRUPTIONS = 300
# A mean and a 95 % quantile of fewer crashes than that would be noise.
MIN_CRASHES = 400

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Simulation:
    """What came out: means over all runs, and the overhead that 5 % and 95 % of the runs stayed below.

    Lost seconds are of training, at a crash; None where there were too few crashes to tell.
    """

    num_runs: int
    span_seconds: float
    stall_share: float
    lost_share: float
    restart_share: float
    overhead_range: tuple[float, float]
    mean_lost_seconds: float | None
    p95_lost_seconds: float | None

    @property
    def overhead(self) -> float:
        return self.stall_share + self.lost_share + self.restart_share


@dataclass(frozen=True)
class _Stretches:
    """[runs, cycles], in seconds: each cycle is a restart and training up to the next interruption.

    `is_crash` and `is_notice` say how it ended; neither, where the time was over.
    """

    restart: Array
    training: Array
    is_crash: np.ndarray[Any, np.dtype[np.bool_]]
    is_notice: np.ndarray[Any, np.dtype[np.bool_]]


def simulate_cadence(
    interval_seconds: float, costs: Costs, rates: Rates, num_runs: int, seed: int, span_seconds: float = MONTH_SECONDS
) -> Simulation:
    """Play `num_runs` runs of `span_seconds` each; fewer seconds where that would be very many interruptions."""
    span = min(span_seconds, MAX_INTERRUPTIONS / rates.per_second)
    cycles = _draw(costs, rates, num_runs, span, np.random.default_rng(seed))
    trained = _seconds_trained(cycles.training, interval_seconds, costs.stall_seconds)
    lost = np.where(cycles.is_crash, trained - _seconds_saved(cycles.training, interval_seconds, costs), 0.0)
    stall = cycles.training - trained
    overhead = (lost + stall + cycles.restart).sum(axis=1) / span
    takes = lost[cycles.is_crash & (cycles.training > 0)]
    is_enough = takes.size >= MIN_CRASHES
    low, high = np.quantile(overhead, (0.05, 0.95)).tolist()
    return Simulation(
        num_runs=num_runs,
        span_seconds=span,
        stall_share=float(stall.sum()) / (num_runs * span),
        lost_share=float(lost.sum()) / (num_runs * span),
        restart_share=float(cycles.restart.sum()) / (num_runs * span),
        overhead_range=(low, high),
        mean_lost_seconds=float(takes.mean()) if is_enough else None,
        p95_lost_seconds=float(np.quantile(takes, 0.95)) if is_enough else None,
    )


def _draw(costs: Costs, rates: Rates, num_runs: int, span: float, random: np.random.Generator) -> _Stretches:
    """Interruptions until each run's time is over. The save after a notice counts as part of the restart."""
    expected = rates.per_second * span
    shape = (num_runs, ceil(expected + 8 * sqrt(expected)) + 12)
    lasts = random.exponential(1 / rates.per_second, shape)
    noticed = random.random(shape) * rates.per_second < rates.notices_per_second
    # An interruption during a restart begins the restart again, and there is nothing to save; the first needs none.
    restart_seconds = np.full(shape[1], costs.restart_seconds)
    restart_seconds[0] = 0.0
    last_save = np.where(noticed & (lasts > restart_seconds), costs.to_durable_seconds, 0.0)
    ends = np.cumsum(lasts + last_save, axis=1)
    begins = ends - lasts - last_save
    assert bool((ends[:, -1] >= span).all()), "more interruptions in a run than could be drawn"
    lived = np.clip(span - begins, 0, lasts)
    restart = np.minimum(lived, restart_seconds)
    saving = np.clip(span - begins - lasts, 0, last_save)
    is_over = begins + lasts <= span
    return _Stretches(restart + saving, lived - restart, is_over & ~noticed, is_over & noticed)


def _seconds_trained(seconds: Array, interval_seconds: float, stall_seconds: float) -> Array:
    """Of `seconds` since the end of a restart, those in which training did not stand still for a save."""
    whole, rest = np.divmod(seconds, interval_seconds)
    return whole * (interval_seconds - stall_seconds) + np.minimum(rest, interval_seconds - stall_seconds)


def _seconds_saved(seconds: Array, interval_seconds: float, costs: Costs) -> Array:
    """Seconds of training in the newest save that counts after `seconds` since the end of a restart."""
    num_saves = np.maximum(np.floor((seconds - costs.durable_seconds) / interval_seconds), 0)
    return num_saves * (interval_seconds - costs.stall_seconds)


def young_seconds(stall_seconds: float, seconds_between_crashes: float) -> float:
    """The first-order optimum: seconds of training between two saves.

    Young, A first order approximation to the optimum checkpoint interval, CACM 17 (1974).
    """
    return sqrt(2 * stall_seconds * seconds_between_crashes)


def daly_seconds(stall_seconds: float, seconds_between_crashes: float) -> float:
    """The higher-order optimum: seconds of training between two saves.

    Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22 (2006), equation 37.
    """
    if stall_seconds >= 2 * seconds_between_crashes:
        return seconds_between_crashes
    root = sqrt(stall_seconds / (2 * seconds_between_crashes))
    return young_seconds(stall_seconds, seconds_between_crashes) * (1 + root / 3 + root**2 / 9) - stall_seconds
