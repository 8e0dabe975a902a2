"""Thresholds of a binary target, from which a sample counts as positive: precision, recall and F1 at each of them.

Invariant: a sample is positive if its probability is at least the threshold. The best threshold lies midway between two
probabilities that occur, so a last bit that another program computes differently moves no sample across it.
"""

from typing import Any

import torch
from torch import Tensor

LISTED = [number / 100 for number in range(1, 100)]


def choose_threshold(probabilities: Tensor, positive: Tensor, measured: Tensor, are_positive: Tensor) -> dict[str, Any]:
    """Chosen on the first two, [N], and the best one measured on the others too, [M]; whether positive is bool."""
    labels, best = positive.long(), find_best(probabilities, positive.long())
    return {
        "listed": list_thresholds(probabilities, labels),
        "best": score_at(probabilities, labels, best) | {"measured": score_at(measured, are_positive.long(), best)},
    }


def score_at(probabilities: Tensor, labels: Tensor, threshold: float) -> dict[str, Any]:
    """Precision, recall and F1 of [N] probabilities in float64. Precision is None where no sample is positive."""
    positive = probabilities >= threshold
    num_found = int((positive & (labels == 1)).sum())
    num_positive, num_true = int(positive.sum()), int((labels == 1).sum())
    return {
        "threshold": threshold,
        "precision": num_found / num_positive if num_positive else None,
        "recall": num_found / num_true if num_true else None,
        "f1": 2 * num_found / (num_positive + num_true) if num_positive + num_true else None,
        "num_positive": num_positive,
    }


def find_best(probabilities: Tensor, labels: Tensor) -> float:
    """The threshold with the highest F1, of equal ones the highest; there must be a positive label."""
    ordered, order = torch.sort(probabilities, descending=True, stable=True)
    found = torch.cumsum((labels[order] == 1).double(), dim=0)
    num_positive = torch.arange(1, len(ordered) + 1, dtype=torch.float64)
    f1 = 2 * found / (num_positive + found[-1])
    following = torch.cat([ordered[1:], torch.zeros(1, dtype=ordered.dtype)])
    # Equal probabilities cannot be separated: only behind the last of them there may be a threshold.
    f1[:-1][ordered[:-1] == following[:-1]] = -1.0
    best = int(torch.argmax(f1))
    midway = (ordered[best].item() + following[best].item()) / 2
    return float(midway if midway > following[best].item() else ordered[best].item())


def list_thresholds(probabilities: Tensor, labels: Tensor) -> list[dict[str, Any]]:
    """The scores at 0.01, 0.02 ... 0.99."""
    return [score_at(probabilities, labels, threshold) for threshold in LISTED]
