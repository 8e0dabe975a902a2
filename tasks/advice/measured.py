"""How often a run should save: what its own figures come to, for the interval as it is and for every other one.

Invariant: pure: the same state and the same options give the same advice. The recommended interval is within
what the configuration allows, never shorter than a save takes to be durable, and no other one there has less overhead
by more than rounding.
"""

from dataclasses import dataclass
from math import ceil, floor, log10

import numpy as np

from storage.runs.figures import RunFigures, read_figures
from storage.runs.run_state import RunState
from tasks.advice.basis import HOUR_SECONDS, AdviceOptions, Basis, settle_basis
from tasks.advice.cadence import Costs, Forecast, Rates, find_best_interval, forecast_cadence
from tasks.advice.storage_cost import MONTH_SECONDS, StoragePrices, StorageUse, plan_storage
from training.configuration import LONGEST_EVERY_SECONDS, CheckpointConfig

SHOWN_SECONDS = (2, 5, 10, 20, 30, 60, 120, 180, 300, 450, 600, 900)
SCALES = (8, 64, 512, 16_384)
# Of all the time: a difference in overhead up to here is worth no change.
INDIFFERENT_SHARE = 0.001
NUM_TRIED = 400
# Closer to a marked interval no other one is shown.
APART = 1.15


@dataclass(frozen=True)
class Cadence:
    """The two fields of the configuration, and the interval that they come to, whichever is first."""

    every_seconds: float
    every_steps: int | None
    interval_seconds: float


@dataclass(frozen=True)
class IntervalFigures:
    """What one interval comes to, in a month of training.

    `dollars` are those of storage, None while the size of a checkpoint is not known; `gpu_dollars` those of GPU time
    that makes no progress: stalls, steps that are made again, restarts.
    """

    forecast: Forecast
    dollars: float | None
    gpu_dollars: float
    marks: tuple[str, ...]


@dataclass(frozen=True)
class ScaleFigures:
    """The same run on another number of GPUs: its best interval, and what it comes to there and as configured."""

    num_gpus: int
    seconds_between_crashes: float
    best: Forecast
    configured: Forecast


@dataclass(frozen=True)
class Advice:
    """The whole advice. All intervals are seconds from save to save."""

    run: str
    options: AdviceOptions
    storage: StorageUse | None
    figures: RunFigures
    basis: Basis
    configured: Cadence
    recommended: Cadence
    best_seconds: float
    indifferent_range: tuple[float, float]
    uncertain_range: tuple[float, float] | None
    intervals: list[IntervalFigures]
    scales: list[ScaleFigures]

    def at(self, cadence: Cadence) -> IntervalFigures:
        """The figures of the configured or the recommended cadence."""
        return next(one for one in self.intervals if one.forecast.interval_seconds == cadence.interval_seconds)


def advise(state: RunState, policy: CheckpointConfig, options: AdviceOptions, prices: StoragePrices) -> Advice:
    """The advice for a run that goes on with `policy`. Raises `ConfigurationError` where a figure is missing."""
    figures = read_figures(state)
    basis = settle_basis(state.run, figures, options)
    best = _best(basis, basis.rates.crashes_per_second)
    configured, recommended = _configured(basis, policy), _recommend(basis, best)
    size = figures.checkpoint_bytes
    storage = None if size is None else plan_storage(size, policy, state.steps_total, prices)
    return Advice(
        run=state.run,
        options=options,
        storage=storage,
        figures=figures,
        basis=basis,
        configured=configured,
        recommended=recommended,
        best_seconds=best,
        indifferent_range=_indifferent_range(basis, best),
        uncertain_range=_uncertain_range(basis),
        intervals=[
            _look_at(interval, basis, options, figures, storage, _marks(interval, configured, recommended))
            for interval in _choose_intervals(basis, configured, recommended)
        ],
        scales=[_look_at_scale(num_gpus, basis, options, configured) for num_gpus in SCALES],
    )


def _configured(basis: Basis, policy: CheckpointConfig) -> Cadence:
    step = basis.step_seconds
    by_steps = policy.every_seconds if step is None else policy.every_steps * step + basis.costs.stall_seconds
    interval = max(min(policy.every_seconds, by_steps), basis.shortest_seconds)
    return Cadence(policy.every_seconds, policy.every_steps, interval)


def _recommend(basis: Basis, best: float) -> Cadence:
    """`best` in two digits, and as many steps as fill it: then seconds and steps ask for a save at the same time."""
    seconds = max(_two_digits(best), _two_digits(basis.shortest_seconds, upwards=True))
    seconds = min(seconds, LONGEST_EVERY_SECONDS)
    steps = None if basis.step_seconds is None else max(1, ceil(seconds / basis.step_seconds))
    return Cadence(seconds, steps, max(seconds, basis.shortest_seconds))


def _two_digits(value: float, upwards: bool = False) -> float:
    unit = 10.0 ** (floor(log10(value)) - 1)
    return round((ceil if upwards else round)(value / unit) * unit, 6)


def _best(basis: Basis, crashes_per_second: float) -> float:
    rates = Rates(crashes_per_second, basis.rates.notices_per_second)
    return find_best_interval(basis.costs, rates, basis.shortest_seconds, LONGEST_EVERY_SECONDS)


def _indifferent_range(basis: Basis, best: float) -> tuple[float, float]:
    """The intervals around the best one that cost hardly more."""
    longest = max(LONGEST_EVERY_SECONDS, basis.shortest_seconds)
    most = forecast_cadence(best, basis.costs, basis.rates).overhead + INDIFFERENT_SHARE
    tried = np.geomspace(basis.shortest_seconds, longest, NUM_TRIED).tolist()
    fine = [i for i in tried if forecast_cadence(i, basis.costs, basis.rates).overhead <= most]
    return min([*fine, best]), max([*fine, best])


def _uncertain_range(basis: Basis) -> tuple[float, float] | None:
    """The best intervals at the two ends of what the counted crashes allow."""
    if basis.crash_range is None:
        return None
    low, high = basis.crash_range
    return _best(basis, high), _best(basis, low)


def _choose_intervals(basis: Basis, configured: Cadence, recommended: Cadence) -> list[float]:
    marked = {configured.interval_seconds, recommended.interval_seconds}
    bounds = {basis.shortest_seconds} if basis.shortest_seconds >= 1 else set()
    shown = {float(s) for s in SHOWN_SECONDS if s > basis.shortest_seconds}
    apart = {one for one in shown | bounds if all(not 1 / APART < one / other < APART for other in marked)}
    return sorted(marked | apart)


def _marks(interval: float, configured: Cadence, recommended: Cadence) -> tuple[str, ...]:
    named = {"recommended": recommended, "configured": configured}
    return tuple(name for name, cadence in named.items() if cadence.interval_seconds == interval)


def _look_at(
    interval: float,
    basis: Basis,
    options: AdviceOptions,
    figures: RunFigures,
    storage: StorageUse | None,
    marks: tuple[str, ...],
) -> IntervalFigures:
    forecast = forecast_cadence(interval, basis.costs, basis.rates)
    gpu_hours = figures.world_size * MONTH_SECONDS / HOUR_SECONDS
    return IntervalFigures(
        forecast=forecast,
        dollars=None if storage is None else storage.dollars_per_month(interval),
        gpu_dollars=forecast.overhead * gpu_hours * options.price_per_gpu_hour,
        marks=marks,
    )


def _look_at_scale(num_gpus: int, basis: Basis, options: AdviceOptions, configured: Cadence) -> ScaleFigures:
    rates = Rates(options.failures_per_gpu_hour * num_gpus / HOUR_SECONDS)
    costs: Costs = basis.costs
    best = find_best_interval(costs, rates, basis.shortest_seconds, LONGEST_EVERY_SECONDS)
    return ScaleFigures(
        num_gpus=num_gpus,
        seconds_between_crashes=1 / rates.crashes_per_second,
        best=forecast_cadence(best, costs, rates),
        configured=forecast_cadence(configured.interval_seconds, costs, rates),
    )
