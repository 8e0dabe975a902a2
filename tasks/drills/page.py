"""The drill's page: the comparison of two runs for whoever has to believe it.

Invariant: a pure function of the records, and self-contained like every page of Holdfast.
"""

from collections.abc import Mapping, Sequence

from storage.runs.metric_values import MetricValue
from tasks.drills.comparison import Comparison, Kill, difference
from tasks.drills.curves import draw_drill
from tasks.drills.plan import DrillPlan
from tasks.drills.words import Finding, judge_drill, list_findings, ranks_of, small
from tasks.pages.render import render_page
from tasks.pages.tables import Cell, Kind, Table
from tasks.pages.tiles import Tile
from tasks.pages.words import NOTHING, count_of, listing, plain
from tasks.reports.tables import segments_table

TEMPLATE = "drills/drill.html.jinja"
MAX_SIZES_SHOWN = 3
# The colours of outcomes, for results: green, amber, red.
RESULT_KEYS = {"same": "completed", "apart": "preempted", "different": "lost"}


def render_drill_page(plan: DrillPlan, comparison: Comparison, hits: Sequence[Kill], command: str) -> str:
    """The page as HTML. `command` makes the same drill again."""
    return render_page(
        TEMPLATE,
        run=plain(plan.run),
        number=plan.number,
        standing="complete" if comparison.holds else "stopped",
        verdict=judge_drill(plan, comparison, hits),
        tiles=_tiles(plan, comparison, hits),
        facts=_facts(comparison),
        command=plain(command),
        chart=draw_drill(comparison.straight.history, comparison.interrupted.history, comparison.interrupted.segments),
        findings=findings_table(list_findings(comparison)),
        validations=validations_table(comparison),
        segments={
            "Segments of the interrupted run": segments_table(comparison.interrupted.segments),
            "Segments of the straight run": segments_table(comparison.straight.segments),
        },
        configuration="\n".join(listing(comparison.straight.state.config)),
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


def validations_table(comparison: Comparison) -> Table:
    """The loss of every validation in either run."""
    columns: list[tuple[str, Kind]] = [
        ("Step", "number"), ("Straight", "number"), ("Interrupted", "number"), ("Difference", "number"),
    ]  # fmt: skip
    ours, theirs = comparison.straight.validation_losses, comparison.interrupted.validation_losses
    rows = [
        [Cell(f"{step:,}"), Cell(_exactly(ours, step)), Cell(_exactly(theirs, step)), Cell(_apart(ours, theirs, step))]
        for step in sorted(ours.keys() | theirs.keys())
    ]
    return Table(columns, rows)


def _exactly(losses: Mapping[int, MetricValue], step: int) -> str:
    """All digits: what is called the same can be seen to be."""
    return str(losses[step]) if step in losses else NOTHING


def _apart(ours: Mapping[int, MetricValue], theirs: Mapping[int, MetricValue], step: int) -> str:
    return small(difference(ours[step], theirs[step]) if step in ours and step in theirs else None)


def _tiles(plan: DrillPlan, comparison: Comparison, hits: Sequence[Kill]) -> list[Tile]:
    straight, interrupted = comparison.straight, comparison.interrupted
    samples, weights = list_findings(comparison)[:2]
    sizes = [str(segment.world_size) for segment in interrupted.segments]
    shown = " → ".join(sizes[:MAX_SIZES_SHOWN]) + (" …" if len(sizes) > MAX_SIZES_SHOWN else "")
    seen = "not shown" if comparison.ledgers.problem else "not equal"
    return [
        Tile("Samples", "equal" if samples.result == "same" else seen, samples.words),
        Tile("Weights", "equal" if weights.result == "same" else "not equal", weights.words),
        Tile("Kills", f"{len(hits)} of {len(plan.aims)}", f"{count_of(interrupted.steps_lost, 'step')} trained again"),
        Tile("Ranks", shown, f"straight: {ranks_of(straight)}"),
    ]


def _facts(comparison: Comparison) -> list[tuple[str, str]]:
    return [
        ("Weights, straight", comparison.straight.weights_sha256),
        ("Weights, interrupted", comparison.interrupted.weights_sha256),
        ("Data set digest", comparison.straight.state.dataset_digest),
    ]
