"""The drill's page: the comparison of two runs.

Invariant: a pure function of the records, and self-contained like every page of Holdfast. What the report of each of
the two runs draws, its segments and settings, is not drawn again.
"""

from collections.abc import Sequence

from tasks.console.tables import Cell, Kind, Table
from tasks.drills.comparison import Comparison, Kill
from tasks.drills.curves import draw_drill
from tasks.drills.plan import DrillPlan
from tasks.drills.rank_kills import RankKill
from tasks.drills.words import Finding, drill_verdict, list_findings, ranks_of
from tasks.reporting.render import render_page
from tasks.reporting.tiles import Tile
from tasks.text import plain

TEMPLATE = "drills/drill.html.jinja"
MAX_SIZES_SHOWN = 3
# The colours of outcomes, for results: green, amber, red.
RESULT_KEYS = {"same": "completed", "apart": "preempted", "different": "lost"}


def render_drill_page(
    plan: DrillPlan, comparison: Comparison, hits: Sequence[Kill], command: str, rank_kills: Sequence[RankKill] = ()
) -> str:
    """The page as HTML. `command` makes the same drill again."""
    return render_page(
        TEMPLATE,
        run=plain(plan.run),
        number=plan.number,
        standing="complete" if comparison.holds else "stopped",
        verdict=drill_verdict(plan, comparison, hits, rank_kills),
        tiles=_tiles(plan, comparison, hits),
        facts=_facts(comparison),
        command=plain(command),
        chart=draw_drill(comparison.straight.history, comparison.interrupted.history, comparison.interrupted.segments),
        findings=findings_table(list_findings(comparison)),
    )


def findings_table(findings: Sequence[Finding]) -> Table:
    """What was compared."""
    columns: list[tuple[str, Kind]] = [
        ("Compared", "text"), ("Straight", "number"), ("Interrupted", "number"), ("Result", "outcome"),
    ]  # fmt: skip
    rows = [
        [
            Cell(plain(finding.name)),
            Cell(plain(finding.straight)),
            Cell(plain(finding.interrupted)),
            Cell(plain(finding.words), key=RESULT_KEYS[finding.result]),
        ]
        for finding in findings
    ]
    return Table(columns, rows)


def _tiles(plan: DrillPlan, comparison: Comparison, hits: Sequence[Kill]) -> list[Tile]:
    straight, interrupted = comparison.straight, comparison.interrupted
    samples, weights = list_findings(comparison)[:2]
    sizes = [str(segment.world_size) for segment in interrupted.segments]
    shown = " → ".join(sizes[:MAX_SIZES_SHOWN]) + (" …" if len(sizes) > MAX_SIZES_SHOWN else "")
    seen = "not shown" if comparison.ledgers.problem else "not equal"
    return [
        Tile("Samples", "equal" if samples.result == "same" else seen, samples.words),
        Tile("Weights", "equal" if weights.result == "same" else "not equal", weights.words),
        Tile("Kills", f"{len(hits)} of {len(plan.aims)}", f"{interrupted.lost_words} trained again"),
        Tile("Ranks", shown, f"straight: {ranks_of(straight)}"),
    ]


def _facts(comparison: Comparison) -> list[tuple[str, str]]:
    return [
        ("Straight run", comparison.straight.address),
        ("Interrupted run", comparison.interrupted.address),
        ("Weights, straight", comparison.straight.weights_sha256),
        ("Weights, interrupted", comparison.interrupted.weights_sha256),
        ("Data set digest", comparison.straight.state.dataset_digest),
    ]
