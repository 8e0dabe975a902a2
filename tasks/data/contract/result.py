"""What was found of a data set, kept with it: as a file in its folder, and as a page that Prefect shows.

Invariant: the file is the same bytes for the same data, as all files of a data set.
"""

import json
from collections.abc import Mapping
from typing import Any

from storage.datasets import DatasetManifest, read_dataset_file
from storage.objects.store import Store
from tasks.console.markdown import markdown_table
from tasks.console.tables import Cell, Kind, Table
from tasks.text import count_of

CONTRACT_FILE = "contract.json"
# Severities of an expectation: what keeps a data set from being published, and what is reported.
CRITICAL, WARNING = "critical", "warning"
UNMET = {CRITICAL: "not met", WARNING: "not met: a warning"}
COLUMNS: list[tuple[str, Kind]] = [(name, "text") for name in ("what", "expected", "found", "verdict", "expectation")]


def find_contract_result(store: Store, dataset: DatasetManifest) -> dict[str, Any] | None:
    """What was found when the data set was prepared; None for a table on which a run's model is evaluated."""
    if dataset.contract is None:
        return None
    result: dict[str, Any] = json.loads(read_dataset_file(store, dataset, dataset.contract))
    return result


def sum_up(result: dict[str, Any]) -> str:
    """One sentence."""
    num_met = sum(found["met"] for found in result["results"])
    return f"{num_met:,} of {count_of(len(result['results']), 'expectation')} met by {result['rows']:,} rows."


def describe_unmet(contract: Mapping[str, Any]) -> list[str]:
    """A sentence for each expectation of severity "warning" that is not met."""
    return [
        f"Not as expected: {found['description']}: {found['found']}, expected {found['expected']}."
        + (f" {found['notes']}" if found["notes"] else "")
        for found in contract.get("results", [])
        if found["severity"] == WARNING and not found["met"]
    ]


def render_markdown(dataset: DatasetManifest, result: dict[str, Any]) -> str:
    """All expectations as a table, each with what was found and the verdict."""
    rows = [
        [
            Cell(text)
            for text in (found["description"], found["expected"], found["found"], _verdict(found), _asked(found))
        ]
        for found in result["results"]
    ]
    return "\n".join(
        [
            f"# Contract of data set {dataset.digest[:12]}",
            "",
            f"{sum_up(result)} No row breaks a rule. Great Expectations {result['great_expectations']}.",
            "",
            markdown_table(Table(COLUMNS, rows)),
            "",
        ]
    )


def _verdict(found: dict[str, Any]) -> str:
    return "met" if found["met"] else UNMET.get(found["severity"], "not met: for information")


def _asked(found: dict[str, Any]) -> str:
    own = ", of data.expectations" if found["suite"] == "own" else ""
    return f"{found['type']} of {found['of']}{own}"
