"""How often to save: what a cadence costs and what a crash takes, exactly, for interruptions that come by chance.

The model. Training goes on for `interval - stall` seconds, stands still for the stall of a save, and goes on while the
save is written; `durable_seconds` after the stall the save counts. Interruptions come without memory (Poisson), also
while the run starts again. A crash takes the work since the last save that counts; a notice leaves time for a save of
its own and takes none. From one restart to the next nothing is remembered, so means over that cycle are long-run shares
(renewal-reward). Where nothing is written in the background and no notice is given, this is Daly's complete model.

Invariant: pure arithmetic. A simulation, and the formulas of Young and Daly, agree:
`unit/tasks/advice/test_cadence.py`.
"""

from dataclasses import dataclass
from math import exp, expm1, floor, log, log1p

from scipy.optimize import minimize_scalar

# Restarts that last so many mean times between interruptions never end; the exact number would not fit into a float.
HOPELESS = 700.0


@dataclass(frozen=True)
class Costs:
    """Seconds that a save and a restart take. `durable_seconds` begin after the stall, beside training."""

    stall_seconds: float
    durable_seconds: float
    restart_seconds: float

    @property
    def to_durable_seconds(self) -> float:
        """From the copy of the state to the moment from which on it is what a restart begins with."""
        return self.stall_seconds + self.durable_seconds


@dataclass(frozen=True)
class Rates:
    """Interruptions per second. At least one crash is expected some day: `crashes_per_second` is above 0."""

    crashes_per_second: float
    notices_per_second: float = 0.0

    @property
    def per_second(self) -> float:
        return self.crashes_per_second + self.notices_per_second


@dataclass(frozen=True)
class Forecast:
    """What one interval comes to. Shares are of all the time, in [0, 1]; lost seconds are of training, at a crash."""

    interval_seconds: float
    stall_share: float
    lost_share: float
    restart_share: float
    mean_lost_seconds: float
    p95_lost_seconds: float
    bound_lost_seconds: float

    @property
    def overhead(self) -> float:
        """The part of all the time that is not training that counts."""
        return self.stall_share + self.lost_share + self.restart_share


def forecast_cadence(interval_seconds: float, costs: Costs, rates: Rates) -> Forecast:
    """The long-run means of a save every `interval_seconds`, stall included. Raises `ValueError` if it has no room."""
    trained = interval_seconds - costs.stall_seconds
    if trained <= 0:
        raise ValueError(f"{interval_seconds:g} s between two saves leave nothing beside {costs.stall_seconds:g} s")
    rate = rates.per_second
    # Means from the end of a restart to the next interruption: seconds trained, and those in saves that count by then.
    worked = expm1(-rate * trained) / expm1(-rate * interval_seconds) / rate
    saved = trained * exp(-rate * (costs.durable_seconds + interval_seconds)) / -expm1(-rate * interval_seconds)
    crash_share = rates.crashes_per_second / rate
    lost = crash_share * (worked - saved)
    stall = 1 / rate - worked
    restart = (1 - crash_share) * costs.to_durable_seconds + expm1(min(rate * costs.restart_seconds, HOPELESS)) / rate
    cycle = worked + stall + restart
    return Forecast(
        interval_seconds=interval_seconds,
        stall_share=stall / cycle,
        lost_share=lost / cycle,
        restart_share=restart / cycle,
        mean_lost_seconds=worked - saved,
        p95_lost_seconds=lost_quantile(0.95, interval_seconds, costs, rates),
        bound_lost_seconds=interval_seconds + costs.to_durable_seconds,
    )


def lost_quantile(share: float, interval_seconds: float, costs: Costs, rates: Rates) -> float:
    """Seconds of training that `share` of all crashes do not exceed; `share` in [0, 1)."""
    rate = rates.per_second
    # Seconds since the work began that the newest save which counts does not have. Below `durable_seconds` that is
    # possible only right after a restart; from there on every interval is like the one before.
    early = -expm1(-rate * costs.durable_seconds)
    within = share if share <= early else early - (share - early) * expm1(-rate * interval_seconds)
    return seconds_trained(-log1p(-within) / rate, interval_seconds, costs.stall_seconds)


def seconds_trained(seconds: float, interval_seconds: float, stall_seconds: float) -> float:
    """Of `seconds` since the end of a restart, those in which training did not stand still for a save."""
    num_saves = floor(seconds / interval_seconds)
    trained = interval_seconds - stall_seconds
    return num_saves * trained + min(seconds - num_saves * interval_seconds, trained)


def find_best_interval(costs: Costs, rates: Rates, shortest_seconds: float, longest_seconds: float) -> float:
    """The interval of the lowest overhead within the bounds, which must leave room for training."""
    if shortest_seconds >= longest_seconds:
        return shortest_seconds
    found = minimize_scalar(
        lambda logarithm: forecast_cadence(exp(logarithm), costs, rates).overhead,
        bounds=(log(shortest_seconds), log(longest_seconds)),
        method="bounded",
        options={"xatol": 1e-6},
    )
    # The search never looks at the bounds themselves, and where the overhead only rises or falls one of them is best.
    candidates = (shortest_seconds, exp(found.x), longest_seconds)
    return min(candidates, key=lambda interval: forecast_cadence(interval, costs, rates).overhead)
