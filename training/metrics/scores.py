"""Metrics of predictions against labels: the loss, and what the kind of target is scored by.

Invariant: computed from all predictions of a split in one fixed order, so that the numbers do not depend on how many
ranks made the predictions.
"""

import math
from typing import Any

from torch import Tensor

from training.targets.kind import TargetKind

# What an evaluation has of tables and curves, and how that is recorded which it does not have.
NO_TABLES: dict[str, Any] = {"confusion": [], "per_class": [], "roc": None}


def score(logits: Tensor, labels: Tensor, kind: TargetKind) -> dict[str, float]:
    """`logits` [N, outputs] and `labels` [N] on the CPU; loss is the plain mean of the samples' losses.

    All are NaN if a logit is: then there is no prediction, but torchmetrics would compare and sort it all the same.
    """
    if has_nan(logits):
        return dict.fromkeys(reversed(kind.metrics), math.nan)
    loss = float(kind.sample_losses(logits, labels).double().mean())
    return {"loss": loss, **kind.scores(logits, labels)}


def describe(logits: Tensor, labels: Tensor, kind: TargetKind) -> dict[str, Any]:
    """The tables and curves behind the numbers, JSON-able. All are empty if a logit is NaN, as in `score`."""
    return NO_TABLES | ({} if has_nan(logits) else kind.tables(logits, labels))


def has_nan(logits: Tensor) -> bool:
    """Whether the model has no prediction for a sample."""
    return bool(logits.isnan().any())
