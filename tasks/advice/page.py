"""The advice's page: how often to save, why, and what that rests on, for whoever decides it.

Invariant: a pure function of the advice, and self-contained like every page of Holdfast.
"""

from tasks.advice.cadence_words import brief, dollars, in_seconds, percent
from tasks.advice.chart import draw_advice
from tasks.advice.description import describe_advice
from tasks.advice.measured import Advice, IntervalFigures
from tasks.advice.tables import intervals_table, scales_table, sources_table
from tasks.advice.words import judge_advice, list_assumptions
from tasks.pages.render import render_page
from tasks.pages.tiles import Tile
from tasks.pages.words import NOTHING, plain

TEMPLATE = "advice/advice.html.jinja"


def render_advice_page(advice: Advice, command: str) -> str:
    """The page as HTML. `command` gives the same advice again while the run stands where it stands."""
    described = describe_advice(advice)
    return render_page(
        TEMPLATE,
        run=plain(advice.run),
        verdict=judge_advice(advice),
        tiles=_tiles(advice),
        chart=draw_advice(advice),
        intervals=intervals_table(described["intervals"]),
        sources=sources_table(described["sources"]),
        optima=_optima(advice),
        scales=scales_table(described["scales"]),
        assumptions=list_assumptions(advice),
        command=plain(command),
    )


def _tiles(advice: Advice) -> list[Tile]:
    best, now = advice.at(advice.recommended), advice.at(advice.configured)
    then, before = best.forecast, now.forecast
    return [
        Tile(
            "Best interval", in_seconds(then.interval_seconds), f"{in_seconds(before.interval_seconds)} as configured"
        ),
        Tile("Overhead", percent(then.overhead), f"{percent(before.overhead)} as configured"),
        Tile("Lost at a crash", brief(then.mean_lost_seconds), f"{brief(before.mean_lost_seconds)} as configured"),
        Tile("Storage per month", _cost(best), f"{_cost(now)} as configured"),
        Tile("GPU time lost per month", dollars(best.gpu_dollars), f"{dollars(now.gpu_dollars)} as configured"),
    ]


def _cost(one: IntervalFigures) -> str:
    return NOTHING if one.dollars is None else dollars(one.dollars)


def _optima(advice: Advice) -> list[tuple[str, str]]:
    return [
        ("Young, 1974", in_seconds(advice.young_seconds)),
        ("Daly, 2006", in_seconds(advice.daly_seconds)),
        ("This cadence, within its bounds", in_seconds(advice.best_seconds)),
    ]
