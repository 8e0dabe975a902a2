"""An audit's result in words: one sentence, and the page of it that the Prefect UI shows.

Invariant: the first words are the verdict.
"""

from typing import Any

from tasks.console.markdown import as_code, escape_markdown, markdown_table
from tasks.console.tables import Cell, Table
from tasks.text import count_of


def sum_up(result: dict[str, Any]) -> str:
    """One sentence."""
    counted = f"{count_of(result['steps'], 'step')}, {count_of(result['samples'], 'sample')}"
    if not result["ok"]:
        number = count_of(result["num_violations"], "violation")
        return f"The ledger of run {result['run']!r} has {number}; {counted} could be compared."
    left_out = sum(entry["samples"] for entry in result["skipped"])
    exception = f" except for {count_of(left_out, 'sample')} that rollbacks left out" if left_out else ""
    return f"The ledger is intact: {counted}; every sample once per epoch, in the order computed in advance{exception}."


def render_markdown(result: dict[str, Any]) -> str:
    """The result as an artifact: verdict, epochs, and each violation that is named."""
    verdict = "INTACT" if result["ok"] else "BROKEN"
    parts = [f"# {escape_markdown(result['run'])}: {verdict}", escape_markdown(sum_up(result))]
    if result["epochs"]:
        parts.append(markdown_table(_list_epochs(result["epochs"])))
    if violations := result["violations"]:
        named = (f"- **{v['kind'].replace('_', ' ')}**: {escape_markdown(v['message'])}" for v in violations)
        parts.append("\n".join(named))
    return "\n\n".join([*parts, as_code(result["address"])]) + "\n"


def _list_epochs(epochs: list[dict[str, Any]]) -> Table:
    states = ("not complete", "complete")
    rows = [[Cell(str(e["epoch"])), Cell(f"{e['samples']:,}"), Cell(states[e["complete"]])] for e in epochs]
    return Table([("epoch", "number"), ("samples", "number"), ("state", "text")], rows)
