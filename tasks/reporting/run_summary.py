"""A run as it stands, in Markdown, for the page of its flow run in Prefect.

Invariant: made of the manifest alone.
"""

import time
from collections.abc import Mapping
from typing import Any

from storage.runs.retention import find_being_read, retain
from storage.runs.run_state import RunState
from tasks.configuration.run import RunConfig
from tasks.console.markdown import as_code, escape_markdown, markdown_table
from tasks.console.tables import Cell, Kind, Table
from tasks.reporting.goodput import sum_up_time
from tasks.reporting.tables import segments_table
from tasks.text import at_least, count_of, duration, how_far, metric_name, moment, score, share, size

MOST_SEGMENTS = 20
WIDE = ("Meaning", "Ranks")


def summarise(
    state: RunState,
    config: RunConfig,
    address: str,
    history: Mapping[str, Any] | None = None,
    warning: str | None = None,
) -> str:
    """`address` is the report's; `history` the curves up to the resume point, of which the newest values are shown.

    `warning` is a text of our own, which comes first.
    """
    parts = [
        f"# {escape_markdown(state.run)}",
        *([f"**{warning}**"] if warning else []),
        markdown_table(
            Table([("", "text"), ("", "text")], [[Cell(name), Cell(text)] for name, text in _facts(state, history)])
        ),
        f"Full report: {as_code(address)}",
    ]
    if state.segments:
        parts += [
            _head("Segments", len(state.segments)),
            markdown_table(segments_table(state.segments), MOST_SEGMENTS, WIDE),
        ]
    if state.kept:
        parts += [_head("Checkpoints that are kept", len(state.kept)), markdown_table(_list_kept(state, config))]
    return "\n\n".join(parts) + "\n"


def _facts(state: RunState, history: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    step, spent = state.promoted.step if state.promoted else 0, sum_up_time(state, time.time())
    lost = at_least(f"{state.steps_lost:,}", state.steps_lost_is_least)
    facts = [
        ("step", how_far(step, state).removeprefix("step ")),
        ("segments", f"{len(state.segments)}, {lost} steps lost"),
    ]
    if spent is not None:
        facts.append(("goodput", f"{share(spent.goodput)} of {duration(spent.total)}"))
    for entry in (history or {}).get("validation", [])[-1:]:
        facts += [
            (f"validation {metric_name(name)}, step {entry['step']:,}", score(value))
            for name, value in entry["metrics"].items()
        ]
    if tested := state.headline:
        facts += [(f"test {metric_name(name)}, step {tested.step:,}", score(v)) for name, v in tested.metrics.items()]
    facts += [("rolled back", count_of(len(state.rollbacks), "time"))] if state.rollbacks else []
    facts += [("changed", f"{record.what} at step {record.step:,}") for record in state.changes]
    facts += [("weights", state.promoted.weights_sha256)] if state.promoted else []
    return facts


def _list_kept(state: RunState, config: RunConfig) -> Table:
    decisions = retain(state.kept, config.checkpoint.retention(config.divergence), find_being_read(state))
    columns: list[tuple[str, Kind]] = [
        ("Step", "number"), ("Size", "number"), ("Metric", "number"), ("Promoted", "date"), ("Why", "text")
    ]  # fmt: skip
    rows = [
        [
            Cell(f"{record.step:,}"),
            Cell(size(record.num_bytes)),
            Cell(score(record.metric)),
            Cell(moment(record.promoted_at)),
            Cell(decision.reason),
        ]
        for decision in decisions
        for record in [decision.record]
    ]
    return Table(columns, rows)


def _head(text: str, number: int) -> str:
    return f"## {text}: {number:,}"
