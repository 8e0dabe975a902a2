"""What Great Expectations found, kept with the data set: as a file in its folder, and as a page that Prefect shows.

Invariant: the file is the same bytes for the same data, as all files of a data set.
"""

import json
from typing import Any

from storage.datasets import DatasetManifest, read_dataset_file
from storage.objects.store import Store

CONTRACT_FILE = "contract.json"


def find_contract_result(store: Store, dataset: DatasetManifest) -> dict[str, Any] | None:
    """What was found when the data set was prepared; None for one that was prepared before this was kept."""
    if dataset.contract is None:
        return None
    result: dict[str, Any] = json.loads(read_dataset_file(store, dataset, dataset.contract))
    return result


def sum_up(result: dict[str, Any]) -> str:
    """One sentence."""
    number = sum(len(check["results"]) for check in result["checks"])
    return f"{number} expectations met by {result['rows']:,} rows in {result['files']:,} files."


def render_markdown(dataset: DatasetManifest, result: dict[str, Any]) -> str:
    """All results as tables, one for each batch that was checked."""
    lines = [f"# Contract of data set {dataset.digest[:12]}", "", sum_up(result)]
    lines += [f"Great Expectations {result['great_expectations']}."]
    for check in result["checks"]:
        lines += ["", f"## {check['batch']}", "", "| column | expectation | expected | unexpected | met |"]
        lines += ["|---|---|---|---|---|", *map(_row, check["results"])]
    return "\n".join([*lines, ""])


def _row(result: dict[str, Any]) -> str:
    expected = ", ".join(f"{name} {value}" for name, value in result["expected"].items())
    met = "yes" if result["success"] else "no"
    found = f"{result['unexpected']:,} of {result['elements']:,}"
    cells = (result["column"], result["expectation"], expected, found, met)
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"
