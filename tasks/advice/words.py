"""Words of an advice: the recommendation in sentences, and everything that it takes for granted.

Invariant: pure, and the same on the page and in the terminal. Every assumption behind a figure is a sentence here.
"""

from dataclasses import dataclass
from typing import Literal

from tasks.advice.basis import LITERATURE_PER_GPU_HOUR, LITERATURE_WORDS
from tasks.advice.cadence_words import brief, how_often, in_seconds, percent
from tasks.advice.measured import INDIFFERENT_SHARE, Advice, Cadence
from tasks.advice.storage_cost import CHUNK_BYTES, OTHER_PUTS
from tasks.text import count_of, size
from training.configuration import LONGEST_EVERY_SECONDS


@dataclass(frozen=True)
class AdviceVerdict:
    """The recommendation in a word, in a sentence, further remarks, and the settings that follow it."""

    standing: Literal["complete", "running"]
    badge: str
    headline: str
    remarks: list[str]
    settings: str


def advice_verdict(advice: Advice) -> AdviceVerdict:
    """The recommendation on the page and in the terminal."""
    is_fine = _gain(advice) <= INDIFFERENT_SHARE
    return AdviceVerdict(
        standing="complete" if is_fine else "running",
        badge="Keep as configured" if is_fine else "Change recommended",
        headline=_headline(advice, is_fine),
        remarks=[
            _parts(advice),
            _recovery(advice),
            *_range(advice),
            *_bounds(advice),
            *_uncertainty(advice),
        ],
        settings=_settings(advice.recommended),
    )


def list_assumptions(advice: Advice) -> list[str]:
    """What the figures take for granted, one sentence or two for each thing."""
    return [
        "Interruptions are random: independent of each other, of the step and of the time since the last one, also "
        "during a restart.",
        "A crash loses all training since the newest durable save. After a notice there is time for a save, and "
        "nothing is lost; that save and the restart after it are counted.",
        "A restart begins with the first process and ends with the first step. Noticing a crash and waiting for a "
        "machine come on top; no interval changes them.",
        "Writing in the background is assumed not to slow down any step.",
        *_storage_assumptions(advice),
        f"GPU time: the overhead of a month of training on {count_of(advice.figures.world_size, 'GPU')}, one for each "
        f"rank of the last segment, at ${advice.options.price_per_gpu_hour:g} an hour. The default, $2, is an "
        "example: give yours with --price-per-gpu-hour.",
        f"For other numbers of GPUs: {advice.options.failures_per_gpu_hour:.2g} failures per GPU-hour, each of which "
        f"stops the whole run{_literature(advice)}, and no notices. The state is as large as it is now, since every "
        "GPU has all of it; stall, time to durable and restart are as measured here. Ranks share the copying, the "
        "writing and the reading, so more of them take no longer, as long as the store is fast enough.",
    ]


def cadence_words(cadence: Cadence) -> str:
    """'every 95 s, or 1,900 steps'."""
    steps = "" if cadence.every_steps is None else f", or {count_of(cadence.every_steps, 'step')}"
    return f"every {in_seconds(cadence.interval_seconds)}{steps}"


def _gain(advice: Advice) -> float:
    now, then = advice.at(advice.configured).forecast, advice.at(advice.recommended).forecast
    return now.overhead - then.overhead


def _headline(advice: Advice, is_fine: bool) -> str:
    now, then = advice.at(advice.configured).forecast, advice.at(advice.recommended).forecast
    configured, best = _configured_words(advice), cadence_words(advice.recommended)
    if is_fine:
        return (
            f"Keep the configured interval: with a save {configured}, saving and interruptions take "
            f"{percent(now.overhead)} of the time. With the best interval, {in_seconds(then.interval_seconds)}, they "
            f"would take {percent(then.overhead)}."
        )
    return (
        f"Save {best}: saving and interruptions then take {percent(then.overhead)} of the time. As configured, with a "
        f"save {configured}, they take {percent(now.overhead)}."
    )


def _configured_words(advice: Advice) -> str:
    """How often, and which of the two fields decides."""
    now, step = advice.configured, advice.basis.step_seconds
    by_steps = step is not None and now.every_steps is not None and now.every_steps * step < now.every_seconds
    return f"every {in_seconds(now.interval_seconds)}" + (
        f" ({count_of(now.every_steps or 0, 'step')})" if by_steps else ""
    )


def _parts(advice: Advice) -> str:
    forecast = advice.at(advice.recommended).forecast
    return (
        f"At {in_seconds(forecast.interval_seconds)} training is paused for saves {percent(forecast.stall_share)} "
        f"of the time, {percent(forecast.lost_share)} is training repeated after crashes, and "
        f"{percent(forecast.restart_share)} is spent on restarts, which no interval changes."
    )


def _recovery(advice: Advice) -> str:
    forecast = advice.at(advice.recommended).forecast
    return (
        f"A crash then costs {brief(forecast.mean_lost_seconds)} of training time on average, at most "
        f"{brief(forecast.p95_lost_seconds)} in 95 % of the cases, and never more than "
        f"{brief(forecast.bound_lost_seconds)}: the interval and the time until a save is durable."
    )


def _range(advice: Advice) -> list[str]:
    low, high = advice.indifferent_range
    if high / low < 1.1:
        return []
    return [
        f"Between {in_seconds(low)} and {in_seconds(high)} the overhead is higher by at most "
        f"{percent(INDIFFERENT_SHARE)} of the time: any interval between the two is about as good."
    ]


def _bounds(advice: Advice) -> list[str]:
    shortest, best = advice.basis.shortest_seconds, advice.best_seconds
    if shortest > LONGEST_EVERY_SECONDS:
        return [
            f"A save takes {brief(shortest)} until the next one can follow: with this store a crash may cost "
            f"more than {brief(LONGEST_EVERY_SECONDS)}, whatever the interval. A faster store or a smaller "
            "state changes that."
        ]
    if best >= LONGEST_EVERY_SECONDS * 0.999:
        return [
            f"With crashes this rare the interval could be longer still; checkpoint.every_seconds stops at "
            f"{LONGEST_EVERY_SECONDS:g}, so that no crash costs much more than that."
        ]
    if best <= shortest * 1.001:
        return [f"A shorter interval has no effect: a save takes {brief(shortest)}, and the next one waits for it."]
    return []


def _uncertainty(advice: Advice) -> list[str]:
    if advice.uncertain_range is None or advice.basis.crash_range is None:
        return []
    low, high = advice.uncertain_range
    rare, frequent = advice.basis.crash_range
    number = advice.figures.num_crashes
    counted = "a single crash" if number == 1 else f"{number:,} crashes"
    return [
        f"Counted from {counted}, the true rate may be anything from {how_often(rare)} to {how_often(frequent)} "
        f"(95 %): the best interval would lie between {in_seconds(low)} and {in_seconds(high)}."
    ]


def _storage_assumptions(advice: Advice) -> list[str]:
    if advice.storage is None:
        return ["How large a checkpoint is was not measured yet: what storage costs is left out."]
    prices = advice.storage.prices
    return [
        f"Storage: {size(advice.storage.kept_bytes)} stay, which is what the policy keeps at most and one save under "
        f"way, at ${prices.per_gb_month:g} per GB and month; ${prices.per_1000_puts:g} per 1,000 PUT requests, of "
        f"which a save takes one for each {CHUNK_BYTES >> 20} MiB and {OTHER_PUTS} more. Reading, deleting and the "
        "network are left out. The defaults are those of S3 Standard in us-east-1; requests to a folder cost nothing."
    ]


def _literature(advice: Advice) -> str:
    return f" ({LITERATURE_WORDS})" if advice.options.failures_per_gpu_hour == LITERATURE_PER_GPU_HOUR else " (given)"


def _settings(cadence: Cadence) -> str:
    steps = "" if cadence.every_steps is None else f" --set checkpoint.every_steps={cadence.every_steps}"
    return f"--set checkpoint.every_seconds={cadence.every_seconds:g}{steps}"
