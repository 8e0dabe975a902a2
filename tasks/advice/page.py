"""The advice's page: how often to save, why, and what that rests on, for whoever decides it.

Invariant: a pure function of the advice, and self-contained like every page of Holdfast.
"""

from tasks.advice.cadence_words import brief, dollars, in_seconds, percent
from tasks.advice.chart import draw_advice
from tasks.advice.measured import Advice, IntervalFigures
from tasks.advice.words import judge_advice, list_assumptions
from tasks.pages.render import render_page
from tasks.pages.words import NOTHING, duration, plain
from tasks.reports.run_page import Tile
from tasks.reports.tables import Cell, Kind, Table

TEMPLATE = "advice/advice.html.jinja"


def render_advice_page(advice: Advice, command: str) -> str:
    """The page as HTML. `command` gives the same advice again while the run stands where it stands."""
    return render_page(
        TEMPLATE,
        run=plain(advice.run),
        verdict=judge_advice(advice),
        tiles=_tiles(advice),
        chart=draw_advice(advice),
        intervals=intervals_table(advice),
        sources=sources_table(advice),
        optima=_optima(advice),
        scales=scales_table(advice),
        assumptions=list_assumptions(advice),
        command=plain(command),
    )


def intervals_table(advice: Advice) -> Table:
    """One row for each interval, the shortest first."""
    columns: list[tuple[str, Kind]] = [
        ("Interval", "number"), ("", "text"), ("Overhead", "number"), ("Stall", "number"), ("Done again", "number"),
        ("Restarts", "number"), ("Simulated", "number"),
        ("Lost at a crash", "number"), ("95 %", "number"), ("Never more", "number"), ("Storage", "number"),
    ]  # fmt: skip
    return Table(columns, [_interval_row(one) for one in advice.intervals])


def scales_table(advice: Advice) -> Table:
    """One row for each number of GPUs."""
    columns: list[tuple[str, Kind]] = [
        ("GPUs", "number"), ("Between crashes", "number"), ("Best interval", "number"), ("Overhead there", "number"),
        ("Lost at a crash", "number"), ("95 %", "number"), ("Overhead as configured", "number"),
    ]  # fmt: skip
    rows = [
        [
            Cell(f"{scale.num_gpus:,}"),
            Cell(duration(scale.seconds_between_crashes)),
            Cell(in_seconds(scale.best.interval_seconds)),
            Cell(percent(scale.best.overhead)),
            Cell(brief(scale.best.mean_lost_seconds)),
            Cell(brief(scale.best.p95_lost_seconds)),
            Cell(percent(scale.configured.overhead)),
        ]
        for scale in advice.scales
    ]
    return Table(columns, rows)


def sources_table(advice: Advice) -> Table:
    """What the advice rests on."""
    columns: list[tuple[str, Kind]] = [("Figure", "text"), ("Value", "number"), ("Where it comes from", "text")]
    rows = [[Cell(source.name), Cell(source.value), Cell(plain(source.origin))] for source in advice.basis.sources]
    return Table(columns, rows)


def _interval_row(one: IntervalFigures) -> list[Cell]:
    forecast, simulation = one.forecast, one.simulation
    return [
        Cell(in_seconds(forecast.interval_seconds)),
        Cell(", ".join(one.marks)),
        Cell(percent(forecast.overhead)),
        Cell(percent(forecast.stall_share)),
        Cell(percent(forecast.lost_share)),
        Cell(percent(forecast.restart_share)),
        Cell(percent(simulation.overhead)),
        Cell(brief(forecast.mean_lost_seconds)),
        Cell(brief(forecast.p95_lost_seconds)),
        Cell(brief(forecast.bound_lost_seconds)),
        Cell(_cost(one)),
    ]


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
    ]


def _cost(one: IntervalFigures) -> str:
    return NOTHING if one.dollars is None else dollars(one.dollars)


def _optima(advice: Advice) -> list[tuple[str, str]]:
    return [
        ("Young, 1974", in_seconds(advice.young_seconds)),
        ("Daly, 2006", in_seconds(advice.daly_seconds)),
        ("This cadence, within its bounds", in_seconds(advice.best_seconds)),
    ]
