"""An advice for other programs: what `holdfast advise --json` prints, and what its table is made of.

Invariant: every figure of the page is in here, as a number; times are seconds, shares lie in [0, 1].
"""

from dataclasses import asdict
from typing import Any

from tasks.advice.cadence import Forecast
from tasks.advice.measured import Advice, Cadence, IntervalFigures, ScaleFigures
from tasks.advice.words import advice_verdict, list_assumptions


def describe_advice(advice: Advice) -> dict[str, Any]:
    """JSON-able."""
    storage = advice.storage
    return {
        "run": advice.run,
        "verdict": asdict(advice_verdict(advice)),
        "configured": _describe_cadence(advice, advice.configured),
        "recommended": _describe_cadence(advice, advice.recommended),
        "best_seconds": advice.best_seconds,
        "indifferent_range_seconds": advice.indifferent_range,
        "uncertain_range_seconds": advice.uncertain_range,
        "measured": asdict(advice.figures),
        "costs": asdict(advice.basis.costs),
        "rates": asdict(advice.basis.rates) | {"crash_range": advice.basis.crash_range},
        "storage": None if storage is None else asdict(storage),
        "sources": [asdict(source) for source in advice.basis.sources],
        "intervals": [_describe_interval(one) for one in advice.intervals],
        "scales": [_describe_scale(scale) for scale in advice.scales],
        "assumptions": list_assumptions(advice),
    }


def _describe_cadence(advice: Advice, cadence: Cadence) -> dict[str, Any]:
    return asdict(cadence) | {"overhead": advice.at(cadence).forecast.overhead}


def _describe_forecast(forecast: Forecast) -> dict[str, Any]:
    return asdict(forecast) | {"overhead": forecast.overhead}


def _describe_interval(one: IntervalFigures) -> dict[str, Any]:
    return _describe_forecast(one.forecast) | {
        "dollars_per_month": one.dollars,
        "gpu_dollars_per_month": one.gpu_dollars,
        "marks": one.marks,
    }


def _describe_scale(scale: ScaleFigures) -> dict[str, Any]:
    return {
        "num_gpus": scale.num_gpus,
        "seconds_between_crashes": scale.seconds_between_crashes,
        "best": _describe_forecast(scale.best),
        "configured": _describe_forecast(scale.configured),
    }
