"""The advice's page: how often to save, why, and what that rests on.

Invariant: a pure function of the advice, and self-contained like every page of Holdfast.
"""

from tasks.advice.chart import draw_advice
from tasks.advice.description import describe_advice
from tasks.advice.measured import Advice
from tasks.advice.tables import intervals_table, scales_table, sources_table
from tasks.advice.words import advice_verdict, list_assumptions
from tasks.reporting.render import render_page
from tasks.text import plain

TEMPLATE = "advice/advice.html.jinja"


def render_advice_page(advice: Advice, command: str) -> str:
    """The page as HTML. `command` gives the same advice again while the run stands where it stands."""
    described = describe_advice(advice)
    return render_page(
        TEMPLATE,
        run=plain(advice.run),
        verdict=advice_verdict(advice),
        chart=draw_advice(advice),
        intervals=intervals_table(described["intervals"]),
        sources=sources_table(described["sources"]),
        scales=scales_table(described["scales"]),
        assumptions=list_assumptions(advice),
        command=plain(command),
    )
