"""Predicted labels against those that samples have, any number each: metrics by torchmetrics, where they are defined.

Invariant: torchmetrics is loaded when something is scored for the first time, not with this module. All tensors are on
the CPU: `predicted` and `labels` are int64 [N, classes] of 0 and 1, `probabilities` float64 [N, classes].
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from storage.lazy_imports import lazy_imports
from storage.target_kinds import NEED_CLASSES
from training.targets.class_scores import counting

# It loads torchmetrics, which only a process that scores needs.
with lazy_imports():
    import training.targets.classification as classification

OF_PROBABILITIES = {"auroc", "coverage_error", "ranking_average_precision", "ranking_loss"}


def score_labels(predicted: Tensor, probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Exact match, micro-F1, macro-F1 and mean average precision, in this order.

    Macro-F1 is the mean of the F1 of all classes that occur or are predicted, as of other kinds of target, and the mean
    average precision that of the classes that occur; it is left out where none does.
    """
    num_classes = labels.shape[1]
    is_defined = (predicted + labels).any(dim=0)
    with counting():
        of_each = classification.multilabel_f1_score(predicted, labels, num_classes, average="none")
        found = {
            "exact_match": float(classification.multilabel_exact_match(predicted, labels, num_classes)),
            "micro_f1": float(classification.multilabel_f1_score(predicted, labels, num_classes, average="micro")),
            "macro_f1": float(of_each[is_defined].mean()) if is_defined.any() else 0.0,
        }
    occur = labels.any(dim=0)
    if occur.any():
        with counting(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of classes that do not occur: they are left out of the mean
            precision = classification.multilabel_average_precision(probabilities, labels, num_classes, average="none")
        found["mean_average_precision"] = float(precision[occur].mean())
    return found


def score_extra_labels(
    names: Sequence[str], predicted: Tensor, probabilities: Tensor, labels: Tensor
) -> dict[str, float]:
    """Metrics by their names in torchmetrics, the last in the alphabet first: its own means over the classes.

    Those of `NEED_CLASSES` are the mean over the classes that some samples have and some do not, and left out where
    there is none.
    """
    num_classes, found = labels.shape[1], {}
    is_parted = labels.any(dim=0) & ~labels.all(dim=0)
    with counting(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes for which one is not defined
        for name in sorted(names, reverse=True):
            function = getattr(classification, f"multilabel_{name}")
            scored = probabilities if name in OF_PROBABILITIES else predicted
            if name not in NEED_CLASSES:
                found[name] = float(function(scored, labels, num_classes))
            elif is_parted.any():
                found[name] = float(function(scored, labels, num_classes, average="none")[is_parted].mean())
    return {name: value for name, value in found.items() if not math.isnan(value)}


def tabulate_labels(predicted: Tensor, probabilities: Tensor, labels: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """`per_class`: precision, recall, F1, samples that have the class, and the area under its ROC curve.

    None is what is not defined: the recall of a class that no sample has, the precision of one that is never predicted,
    F1 where both hold, the area unless some samples have it and some do not.
    """
    right = (predicted * labels).sum(dim=0).tolist()
    found, having = predicted.sum(dim=0).tolist(), labels.sum(dim=0).tolist()
    return {
        "per_class": [
            {
                "class": name,
                "precision": _share(right[index], found[index]),
                "recall": _share(right[index], having[index]),
                "f1": _share(2 * right[index], found[index] + having[index]),
                "support": having[index],
                "auc": _area(probabilities[:, index], labels[:, index]),
            }
            for index, name in enumerate(classes)
        ]
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _area(probabilities: Tensor, labels: Tensor) -> float | None:
    if not labels.any() or labels.all():
        return None
    return float(classification.binary_auroc(probabilities, labels))
