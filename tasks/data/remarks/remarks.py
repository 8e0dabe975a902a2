"""All remarks on a data set: logged when it is prepared, and kept with the contract's result.

Invariant: they follow from the data alone, as all files of a data set.
"""

from typing import Any

import duckdb

from storage.datasets import DatasetManifest
from tasks.configuration.run import DataConfig
from tasks.data.contract.result import describe_unmet
from tasks.data.label_form import describe_form, find_form
from tasks.data.labels import may_be_without_classes, name_of
from tasks.data.rare_classes import Counts
from tasks.data.remarks.alike_labels import describe_alike, find_alike
from tasks.data.remarks.rare_labels import describe_rare
from tasks.data.remarks.shared_texts import count_shared_texts, describe_shared_texts
from tasks.data.split import Assignment

NUM_CLASSES_SHOWN = 5
OFFERED = 'data.rare_classes = "drop" leaves such classes out of all splits, "other" makes them one class.'
SHARED_TEXTS = "texts_in_training_split"
ALIKE_LABELS = "labels_alike"
LABEL_FORM = "label_form"
RARE_CLASSES = "rare_classes"


def measure_remarks(
    connection: duckdb.DuckDBPyConnection, assignment: Assignment, config: DataConfig
) -> dict[str, Any]:
    """What is kept with the contract's result, JSON-able; the view `assigned` must be there."""
    names = {name_of(label, config) for label in (*assignment.classes, *assignment.rare)}
    remarks = {SHARED_TEXTS: count_shared_texts(connection), ALIKE_LABELS: find_alike(names)}
    if form := find_form(names):
        remarks[LABEL_FORM] = form
    return remarks | ({RARE_CLASSES: assignment.rare} if assignment.rare else {})


def find_rare_labels(contract: dict[str, Any] | None) -> Counts:
    """The labels whose rows are left out, or are of one class, with their rows in each split."""
    found: Counts = (contract or {}).get(RARE_CLASSES, {})
    return found


def remarks_on(dataset: DatasetManifest, contract: dict[str, Any] | None, config: DataConfig) -> list[str]:
    """A sentence each; `contract` is the contract's result, None where none was kept."""
    found = contract or {}
    return [
        *describe_rare(find_rare_labels(contract), config),
        *describe_shared_texts(found.get(SHARED_TEXTS, {}), config),
        *describe_alike(found.get(ALIKE_LABELS, [])),
        *describe_form(found.get(LABEL_FORM, {})),
        *_lacking_classes(dataset, config),
        *describe_unmet(found),
    ]


def _lacking_classes(dataset: DatasetManifest, config: DataConfig) -> list[str]:
    offered = f" {OFFERED}" if may_be_without_classes(config) and config.rare_classes == "error" else ""
    remarks = []
    for name, split in dataset.splits.items():
        counts = zip(dataset.target.classes, split.class_counts or [], strict=False)
        lacking = [label for label, count in counts if count == 0]
        if lacking and split.num_rows:
            shown = ", ".join(map(repr, lacking[:NUM_CLASSES_SHOWN]))
            more = f" and {len(lacking) - NUM_CLASSES_SHOWN:,} more" if len(lacking) > NUM_CLASSES_SHOWN else ""
            remarks.append(
                f"The {name} split has no row of {len(lacking):,} of {len(dataset.target.classes):,} classes: "
                f"{shown}{more}. How well these are recognised is not measured there.{offered}"
            )
    return remarks
