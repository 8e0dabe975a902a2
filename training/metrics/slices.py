"""Metrics of parts of a split, called slices: the samples that have the same value of a categorical column.

Few samples mean little: values with fewer than `SLICE_MIN_SAMPLES`, and all but the `SLICE_MAX_VALUES` most frequent
ones, are one slice together; a single such value has its own. Invariant: computed from all predictions of a split in
one fixed order, as `scores.py` does it, and the number of samples of all slices of a column is that of the split.
"""

from typing import Any

import torch
from torch import Tensor

from storage.datasets import FIRST_VOCABULARY_INDEX, MISSING_INDEX, UNSEEN_INDEX, CategoricalColumn
from storage.runs.metric_values import metric_value
from training.metrics.scores import score
from training.targets.kind import TargetKind
from training.validation_configuration import SLICE_MAX_VALUES, SLICE_MIN_SAMPLES

GROUPS = {MISSING_INDEX: "missing", UNSEEN_INDEX: "unseen"}


def score_slices(
    logits: Tensor, labels: Tensor, codes: Tensor, column: CategoricalColumn, kind: TargetKind
) -> dict[str, Any]:
    """The slices of one column, JSON-able, the largest first and the rare values last.

    `logits` [N, outputs], `labels` and `codes` [N] on the CPU; a code is an index as `CategoricalColumn` describes it.
    Each slice has `group`: value, missing, unseen (in the training split) or rare; `value`, None where it has none of
    its own; `num_values`, `num_samples`, and `metrics` as of a whole split.
    """
    listed, rare = _choose_values(codes)
    slices = [_name(code, column) | _score(logits, labels, codes == code, kind) for code in listed]
    if rare:
        together = {"group": "rare", "value": None, "num_values": len(rare)}
        slices.append(together | _score(logits, labels, torch.isin(codes, torch.tensor(rare)), kind))
    return {"column": column.name, "slices": slices}


def _choose_values(codes: Tensor) -> tuple[list[int], list[int]]:
    """The codes that have a slice of their own, the most frequent first, and those that share one: none or several."""
    counts = torch.bincount(codes).tolist() if len(codes) else []
    present = sorted((code for code, count in enumerate(counts) if count), key=lambda code: (-counts[code], code))
    listed = [code for code in present[:SLICE_MAX_VALUES] if counts[code] >= SLICE_MIN_SAMPLES]
    rare = present[len(listed) :]
    return (listed, rare) if len(rare) > 1 else (present, [])


def _name(code: int, column: CategoricalColumn) -> dict[str, Any]:
    group = GROUPS.get(code, "value")
    value = column.vocabulary[code - FIRST_VOCABULARY_INDEX] if group == "value" else None
    return {"group": group, "value": value, "num_values": 1}


def _score(logits: Tensor, labels: Tensor, chosen: Tensor, kind: TargetKind) -> dict[str, Any]:
    metrics = score(logits[chosen], labels[chosen], kind)
    return {
        "num_samples": int(chosen.sum()),
        "metrics": {name: metric_value(number) for name, number in metrics.items()},
    }
