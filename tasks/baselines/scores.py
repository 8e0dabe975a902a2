"""The metrics of a linear model, by the definitions that networks are scored by, without torch.

Invariant: for the same outputs and labels these are the numbers of `training/targets`, without the loss, which no
threshold and no rank decides: `unit/tasks/baselines/test_scores.py` compares them. What is not defined is left out.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float32]
Labels = NDArray[np.integer[Any]]


def score_outputs(kind: str, outputs: NDArray[Any], labels: Labels, num_classes: int) -> dict[str, float]:
    """Metrics of N samples, at least 1, whose labels are [N], or [N, classes] where each may have several.

    `outputs` are logits [N, outputs], but of one class of several the index of the predicted one, [N].
    """
    if kind == "multilabel":
        return _score_several(outputs, labels)
    if kind == "multiclass":
        return _score_one(outputs, labels, num_classes)
    found = _score_one((outputs[:, 0] > 0).astype(np.int64), labels, num_classes)
    has_both = bool((labels != labels[0]).any())
    return found | ({"auc": _area_under_roc(outputs[:, 0], labels)} if has_both else {})


def _score_one(predicted: Labels, labels: Labels, num_classes: int) -> dict[str, float]:
    right = np.bincount(labels[predicted == labels], minlength=num_classes)
    of_both = np.bincount(predicted, minlength=num_classes) + np.bincount(labels, minlength=num_classes)
    return {"accuracy": float(right.sum() / len(labels)), "macro_f1": _macro_f1(right, of_both)}


def _score_several(scores: Scores, labels: Labels) -> dict[str, float]:
    predicted, having = scores > 0, labels > 0
    right, of_both = (predicted & having).sum(axis=0), predicted.sum(axis=0) + having.sum(axis=0)
    found = {
        "exact_match": float((predicted == having).all(axis=1).mean()),
        "micro_f1": float(2 * right.sum() / of_both.sum()) if of_both.any() else 0.0,
        "macro_f1": _macro_f1(right, of_both),
    }
    occurring = np.flatnonzero(having.any(axis=0))
    if not len(occurring):
        return found
    precisions = [_average_precision(scores[:, index], having[:, index]) for index in occurring]
    return found | {"mean_average_precision": float(np.mean(precisions))}


def _macro_f1(right: Labels, of_both: Labels) -> float:
    """The mean of F1 over the classes that occur or are predicted."""
    is_defined = of_both > 0
    return float((2 * right[is_defined] / of_both[is_defined]).mean()) if is_defined.any() else 0.0


def _area_under_roc(scores: NDArray[np.float32], labels: Labels) -> float:
    """By the ranks of positives (Hanley and McNeil, Radiology 143, 1982); equal scores share theirs."""
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    num_positive = int(labels.sum())
    above = ranks[labels > 0].sum() - num_positive * (num_positive + 1) / 2
    return float(above / (num_positive * (len(labels) - num_positive)))


def _average_precision(scores: NDArray[np.float32], having: NDArray[np.bool_]) -> float:
    """The mean of the precision at each threshold, weighted by the recall that it adds."""
    order = np.argsort(-scores, kind="stable")
    found = np.cumsum(having[order])
    is_last = np.append(np.diff(scores[order]) != 0, True)  # of those with one score
    found, number = found[is_last], np.flatnonzero(is_last) + 1
    return float((found / number * np.diff(found, prepend=0)).sum() / found[-1])
