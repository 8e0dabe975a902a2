"""An audit's result in words: one sentence, and the page of it that the Prefect UI shows.

Invariant: the first words are the verdict.
"""

from typing import Any

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
    lines = [f"# {result['run']}: {'INTACT' if result['ok'] else 'BROKEN'}", "", sum_up(result), ""]
    if result["epochs"]:
        lines += ["| epoch | samples | state |", "|---|---|---|"]
        states = ("not complete", "complete")
        lines += [f"| {e['epoch']} | {e['samples']:,} | {states[e['complete']]} |" for e in result["epochs"]]
    lines += [f"- **{v['kind'].replace('_', ' ')}**: {v['message']}" for v in result["violations"]]
    return "\n".join([*lines, "", f"`{result['address']}`", ""])
