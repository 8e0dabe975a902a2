"""Metrics of predictions against labels, by torchmetrics, where they are defined: it has 0 for what is not.

Invariant: computed from all predictions of a split in one fixed order, so that the numbers do not depend on how many
ranks made the predictions. `validation.py` imports this file when there is something to score: a restart need not wait
until torchmetrics is loaded.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from storage.datasets import Target
from training.metrics import classification
from training.models.objective import Objective

MAX_ROC_POINTS = 512
METRICS = {"multiclass": ("loss", "accuracy", "macro_f1"), "binary": ("loss", "accuracy", "macro_f1", "auc")}


def score(logits: Tensor, labels: Tensor, target: Target, objective: Objective) -> dict[str, float]:
    """`logits` [N, outputs] and `labels` [N] on the CPU; loss is the plain mean cross entropy.

    All are NaN if a logit is: then there is no prediction, but torchmetrics would compare and sort it all the same.
    Left out is the AUC of labels of one class, which is not defined.
    """
    if has_nan(logits):
        return dict.fromkeys(METRICS[target.kind], math.nan)
    predicted = predicted_classes(logits, target)
    num_classes = len(target.classes)
    metrics = {"loss": objective.sample_losses(logits, labels).double().mean()}
    with _counting():
        metrics["accuracy"] = classification.multiclass_accuracy(predicted, labels, num_classes, average="micro")
        metrics["macro_f1"] = classification.multiclass_f1_score(predicted, labels, num_classes, average="macro")
    if target.kind == "binary" and has_both_classes(labels):
        metrics["auc"] = classification.binary_auroc(logits[:, 0].double().sigmoid(), labels)
    return {name: float(value) for name, value in metrics.items()}


@contextmanager
def _counting() -> Iterator[None]:
    """A context in which torchmetrics counts with `bincount`, which on a CPU gives the same numbers each time.

    Where torch is told to be deterministic, torchmetrics compares each sample with each pair of classes instead, all at
    once, in memory.
    """
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("default")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)


def has_nan(logits: Tensor) -> bool:
    """Whether the model has no prediction for a sample."""
    return bool(logits.isnan().any())


def has_both_classes(labels: Tensor) -> bool:
    """Whether the [N] labels of a binary target are not all of one class."""
    return len(labels) > 0 and bool((labels != labels[0]).any())


def predicted_classes(logits: Tensor, target: Target) -> Tensor:
    """Index of the predicted class of each row, [N]."""
    return (logits[:, 0] > 0).long() if target.kind == "binary" else logits.argmax(dim=1)


def describe(logits: Tensor, labels: Tensor, target: Target) -> dict[str, Any]:
    """The tables and curves behind the numbers, JSON-able: confusion matrix, per-class scores, ROC curve.

    All are empty if a logit is NaN, as in `score`. None is what is not defined: the recall of a class without samples,
    the precision of one that is never predicted, F1 where both hold, the ROC curve of labels of one class. So macro-F1,
    by torchmetrics, is the mean of the F1 that are defined.
    """
    if has_nan(logits):
        return {"confusion": [], "per_class": [], "roc": None}
    predicted, num_classes = predicted_classes(logits, target), len(target.classes)
    with _counting():
        confusion = classification.multiclass_confusion_matrix(predicted, labels, num_classes)
        per_class = {
            "precision": classification.multiclass_precision(predicted, labels, num_classes, average="none"),
            "recall": classification.multiclass_recall(predicted, labels, num_classes, average="none"),
            "f1": classification.multiclass_f1_score(predicted, labels, num_classes, average="none"),
            "support": torch.bincount(labels, minlength=num_classes),
        }
    columns = {name: values.tolist() for name, values in per_class.items()}
    _take_out_undefined(columns, num_predicted=confusion.sum(dim=0).tolist())
    return {
        "confusion": confusion.tolist(),
        "per_class": [
            {"class": label, **{name: values[index] for name, values in columns.items()}}
            for index, label in enumerate(target.classes)
        ],
        "roc": _roc(logits, labels) if target.kind == "binary" and has_both_classes(labels) else None,
    }


def _take_out_undefined(columns: dict[str, list[Any]], num_predicted: list[int]) -> None:
    """Scores per class that divide zero by zero become None."""
    for index, (support, predicted) in enumerate(zip(columns["support"], num_predicted, strict=True)):
        undefined = {"precision": not predicted, "recall": not support, "f1": not predicted and not support}
        for name in (name for name, is_undefined in undefined.items() if is_undefined):
            columns[name][index] = None


def _roc(logits: Tensor, labels: Tensor) -> dict[str, list[float]]:
    false_positive, true_positive, _ = classification.binary_roc(logits[:, 0].double().sigmoid(), labels)
    points = torch.linspace(0, len(false_positive) - 1, min(MAX_ROC_POINTS, len(false_positive))).long()
    return {
        "false_positive_rate": false_positive[points].tolist(),
        "true_positive_rate": true_positive[points].tolist(),
    }
