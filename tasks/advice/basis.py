"""What an advice rests on: each figure given by the user, or measured by the run, or assumed, and which of these it is.

Invariant: nothing is assumed in silence; every figure has a `Source`: where it comes from.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log

from pydantic import Field
from scipy.special import gammaincinv

from storage.errors import ConfigurationError
from storage.runs.figures import RunFigures
from tasks.advice.cadence import Costs, Rates
from tasks.advice.cadence_words import brief, how_often, percent
from tasks.text import count_of, duration, size
from training.configuration import ConfigModel

DAY_SECONDS = 86_400.0
HOUR_SECONDS = 3_600.0
# The Llama 3 Herd of Models (arXiv:2407.21783), section 3.3.4: unexpected interruptions in a snapshot of 54 days.
LLAMA_INTERRUPTIONS, LLAMA_DAYS, LLAMA_GPUS = 419, 54, 16_384
LITERATURE_PER_GPU_HOUR = LLAMA_INTERRUPTIONS / (LLAMA_DAYS * 24 * LLAMA_GPUS)
LITERATURE_WORDS = (
    f"{LLAMA_INTERRUPTIONS} unexpected interruptions in {LLAMA_DAYS} days on {LLAMA_GPUS:,} GPUs "
    "(The Llama 3 Herd of Models, arXiv:2407.21783)"
)
# A stall that was rounded to nothing would ask for a save after every step.
SHORTEST_STALL_SECONDS = 1e-4
# Restarts that last so many mean times between interruptions hardly ever come to their end.
HOPELESS_RESTARTS = 20.0


class AdviceOptions(ConfigModel):
    """What a user may give instead of what the run measured, and prices."""

    failures_per_day: float | None = Field(
        None, gt=0, le=1440, description="Expected crashes per day. Default: measured from this run."
    )
    stall_seconds: float | None = Field(
        None, gt=0, description="Seconds for which a save pauses training. Default: measured."
    )
    durable_seconds: float | None = Field(
        None, ge=0, description="Seconds from the end of that pause until the save is in the store. Default: measured."
    )
    restart_seconds: float | None = Field(
        None, ge=0, description="Seconds from a start to its first step. Default: measured."
    )
    price_per_gb_month: float = Field(0.023, ge=0, description="Dollars for 10^9 bytes kept for a month.")
    price_per_1000_puts: float | None = Field(
        None, ge=0, description="Dollars for 1,000 PUT requests; 0.005 in a bucket and 0 in a folder if not given."
    )
    price_per_gpu_hour: float = Field(2.0, ge=0, description="Dollars for an hour of one GPU.")
    failures_per_gpu_hour: float = Field(
        LITERATURE_PER_GPU_HOUR,
        gt=0,
        le=1,
        description="Expected crashes per GPU and hour: for other numbers of GPUs, or without a crash.",
    )


@dataclass(frozen=True)
class Source:
    """One figure in words, and where it comes from."""

    name: str
    value: str
    origin: str


@dataclass(frozen=True)
class Basis:
    """The figures. `crash_range` is the 95 % confidence interval of the crashes per second, if they were measured."""

    costs: Costs
    rates: Rates
    crash_range: tuple[float, float] | None
    step_seconds: float | None
    sources: list[Source]

    @property
    def shortest_seconds(self) -> float:
        """A save under way is never overtaken, and between two saves lies a step at least."""
        return self.costs.stall_seconds + max(self.costs.durable_seconds, self.step_seconds or 0.001)


def settle_basis(run: str, figures: RunFigures, options: AdviceOptions) -> Basis:
    """Choose each figure. Raises `ConfigurationError` naming what was neither measured nor given."""
    _require_figures(run, figures, options)
    crashes, crash_range, crash_source = _settle_crashes(figures, options)
    notices = figures.num_notices / figures.seconds if figures.seconds > 0 else 0.0
    costs = Costs(
        stall_seconds=max(_first(options.stall_seconds, figures.stall_seconds), SHORTEST_STALL_SECONDS),
        durable_seconds=_first(options.durable_seconds, figures.durable_seconds),
        restart_seconds=_first(options.restart_seconds, figures.restart_seconds),
    )
    rates = Rates(crashes, notices)
    _require_hope(costs, rates)
    sources = [*_cost_sources(costs, figures, options), crash_source, *_other_sources(figures, notices)]
    return Basis(costs, rates, crash_range, figures.step_seconds, sources)


def crash_confidence(num_crashes: int, seconds: float) -> tuple[float, float]:
    """The crashes per second between which the true rate lies with 95 % (Garwood's exact interval; from 0 for none).

    Where there was none, the upper end is one-sided: some three in the time that was watched.
    """
    if num_crashes == 0:
        return 0.0, -log(0.05) / seconds
    low, high = gammaincinv(num_crashes, 0.025), gammaincinv(num_crashes + 1, 0.975)
    return float(low) / seconds, float(high) / seconds


def _require_figures(run: str, figures: RunFigures, options: AdviceOptions) -> None:
    missing = {
        "--stall-seconds": figures.stall_seconds is None and options.stall_seconds is None,
        "--durable-seconds": figures.durable_seconds is None and options.durable_seconds is None,
        "--restart-seconds": figures.restart_seconds is None and options.restart_seconds is None,
    }
    wanted = [option for option, is_missing in missing.items() if is_missing]
    if not wanted:
        return
    ended = count_of(figures.num_segments, "segment")
    raise ConfigurationError(
        f"Run {run!r} has not measured yet what its saves and restarts cost: {ended} ended, with "
        f"{count_of(figures.num_saves, 'save')} that could be counted: not the one with which a segment ends. "
        "Let a segment that saves while it trains (checkpoint.every_seconds, checkpoint.every_steps) end by itself or "
        "by Ctrl-C or SIGTERM (the same command continues the run), or give the figures: "
        f"{', '.join(wanted)}."
    )


def _require_hope(costs: Costs, rates: Rates) -> None:
    if costs.restart_seconds * rates.per_second > HOPELESS_RESTARTS:
        raise ConfigurationError(
            f"A restart takes {duration(costs.restart_seconds)}, and there is an interruption every "
            f"{duration(1 / rates.per_second)}: no restart would finish, whatever the interval. "
            "Check --failures-per-day and --restart-seconds; if they are right, find out what interrupts the run."
        )


def _first(given: float | None, measured: float | None) -> float:
    value = measured if given is None else given
    assert value is not None, "required before"
    return value


def _settle_crashes(figures: RunFigures, options: AdviceOptions) -> tuple[float, tuple[float, float] | None, Source]:
    if options.failures_per_day is not None:
        rate = options.failures_per_day / DAY_SECONDS
        return rate, None, Source("Crashes", how_often(rate), "given")
    if figures.num_crashes and figures.seconds > 0:
        rate = figures.num_crashes / figures.seconds
        low, high = crash_confidence(figures.num_crashes, figures.seconds)
        fits = f"{how_often(low)} to {how_often(high)} with 95 %"
        origin = f"measured: {figures.num_crashes:,} in {duration(figures.seconds)}; {fits}"
        return rate, (low, high), Source("Crashes", how_often(rate), origin)
    return _assume_crashes(figures, options)


def _assume_crashes(figures: RunFigures, options: AdviceOptions) -> tuple[float, tuple[float, float] | None, Source]:
    rate = options.failures_per_gpu_hour * figures.world_size / HOUR_SECONDS
    ranks = count_of(figures.world_size, "rank")
    origin = f"assumed: {options.failures_per_gpu_hour:.2g} per GPU-hour for {ranks}, as if each had a GPU"
    if figures.seconds > 0:
        most = how_often(crash_confidence(0, figures.seconds)[1])
        origin += f"; none in {duration(figures.seconds)} so far, which alone rules out no more than {most} (95 %)"
    return rate, None, Source("Crashes", how_often(rate), origin)


def _cost_sources(costs: Costs, figures: RunFigures, options: AdviceOptions) -> Iterator[Source]:
    saves = f"measured, mean of {count_of(figures.num_saves, 'save')}"
    restarts = f"measured, mean of {count_of(figures.num_restarts, 'restart')}"
    if not figures.num_restarts:
        restarts = "measured at the first start: the run was never resumed yet"
    yield Source("Stall of a save", brief(costs.stall_seconds), "given" if options.stall_seconds else saves)
    given = options.durable_seconds is not None
    yield Source("From there until durable", brief(costs.durable_seconds), "given" if given else saves)
    given = options.restart_seconds is not None
    yield Source("Restart", brief(costs.restart_seconds), "given" if given else restarts)


def _other_sources(figures: RunFigures, notices: float) -> Iterator[Source]:
    if notices:
        origin = f"measured: {count_of(figures.num_notices, 'segment')} asked to stop, and saved; no work is lost"
        yield Source("Notices", how_often(notices), origin)
    if figures.step_seconds is not None:
        yield Source("One step", brief(figures.step_seconds), f"measured on {count_of(figures.world_size, 'rank')}")
    if figures.checkpoint_bytes is not None:
        yield Source("One checkpoint", size(figures.checkpoint_bytes), "measured")
    if figures.spent_on_lost_steps is not None and figures.seconds > 0:
        yield _spent_so_far(figures, figures.spent_on_lost_steps)


def _spent_so_far(figures: RunFigures, on_lost_steps: float) -> Source:
    """What saving and interruptions did cost, to hold beside the forecast."""
    spent = figures.spent_stalled + on_lost_steps + figures.spent_restarting
    parts = f"stalls {brief(figures.spent_stalled)}, steps done again {brief(on_lost_steps)}"
    origin = f"{parts}, restarts {brief(figures.spent_restarting)}; of {duration(figures.seconds)}"
    return Source("Overhead so far", percent(spent / figures.seconds), origin)
