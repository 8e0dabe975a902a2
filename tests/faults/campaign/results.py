"""What a campaign found: one result for each fault, as a table for people and as JSON for programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

MOST_CHARACTERS = 800  # of a note
Verdict = Literal["equal", "clear error", "bad"]


@dataclass(frozen=True)
class Attempt:
    """At how many points a fault was tried, at how many it took place, and how all of it ended."""

    points: int
    fired: int
    verdict: Verdict
    note: str = ""


@dataclass(frozen=True)
class Result:
    """One fault with its name and how long it took.

    equal: every run came to the weights, metrics and ledger of the undisturbed one. clear error: one message, nothing
    lost, and the run goes on to equal weights once the cause is gone. bad: neither; `note` says what.
    """

    fault: str
    points: int
    fired: int
    verdict: Verdict
    seconds: float
    note: str = ""

    @property
    def is_bad(self) -> bool:
        return self.verdict == "bad" or self.fired < self.points or self.points == 0


def write_results(results: Sequence[Result], folder: Path) -> Path:
    """Write `campaign.md` and `campaign.json`; the path of the table."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "campaign.json").write_text(json.dumps([asdict(result) for result in results], indent=2))
    table = folder / "campaign.md"
    table.write_text(render_table(results))
    return table


def render_table(results: Sequence[Result]) -> str:
    """The results in Markdown."""
    head = "| fault | points | fired | ends in | seconds | note |\n|---|---|---|---|---|---|\n"
    return head + "".join(
        f"| {r.fault} | {r.points} | {r.fired} | {r.verdict} | {r.seconds:.0f} | {_one_line(r.note)} |\n"
        for r in results
    )


def sum_up(results: Sequence[Result], seconds: float) -> str:
    """The last line, for programs; `seconds` is what all of it took, with several faults at a time."""
    figures = {
        "faults": len(results),
        "points": sum(result.points for result in results),
        "fired": sum(result.fired for result in results),
        "equal": sum(result.verdict == "equal" for result in results),
        "clear_errors": sum(result.verdict == "clear error" for result in results),
        "bad": sum(result.is_bad for result in results),
        "seconds": round(seconds),
    }
    return " ".join(f"{name}={value}" for name, value in figures.items())


def _one_line(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:MOST_CHARACTERS]
