"""Predicted classes against labels, one each a sample: metrics by torchmetrics, where they are defined.

It has 0 for what is not.

Invariant: torchmetrics is loaded when something is scored for the first time, not with this module: a restart need not
wait for it. All tensors are on the CPU.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from storage.lazy_imports import lazy_imports

# It loads torchmetrics, which only a process that scores needs.
with lazy_imports():
    import training.targets.classification as classification

MAX_ROC_POINTS = 512
# A matrix of 10,000 classes has 100 million numbers, nearly all of them 0.
MAX_MATRIX_CLASSES = 1000


def score_classes(predicted: Tensor, labels: Tensor, num_classes: int) -> dict[str, float]:
    """Accuracy, and macro-F1: the mean of the F1 of all classes that occur or were predicted. Both tensors are [N]."""
    with counting():
        accuracy = classification.multiclass_accuracy(predicted, labels, num_classes, average="micro")
        macro_f1 = classification.multiclass_f1_score(predicted, labels, num_classes, average="macro")
    return {"accuracy": float(accuracy), "macro_f1": float(macro_f1)}


def tabulate_classes(predicted: Tensor, labels: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Confusion matrix and scores of each class.

    None is what is not defined: the recall of a class without samples, the precision of one that is never predicted,
    F1 where both hold. So macro-F1, by torchmetrics, is the mean of the F1 that are defined.
    """
    num_classes = len(classes)
    with counting():
        per_class = {
            "precision": classification.multiclass_precision(predicted, labels, num_classes, average="none"),
            "recall": classification.multiclass_recall(predicted, labels, num_classes, average="none"),
            "f1": classification.multiclass_f1_score(predicted, labels, num_classes, average="none"),
            "support": torch.bincount(labels, minlength=num_classes),
        }
    columns = {name: values.tolist() for name, values in per_class.items()}
    _take_out_undefined(columns, num_predicted=torch.bincount(predicted, minlength=num_classes).tolist())
    return {
        "confusion": count_pairs(predicted, labels, num_classes),
        "per_class": [
            {"class": label, **{name: values[index] for name, values in columns.items()}}
            for index, label in enumerate(classes)
        ],
    }


def count_pairs(predicted: Tensor, labels: Tensor, num_classes: int) -> list[list[int]] | dict[str, list[int]]:
    """The confusion matrix, a row for each true class; of many classes its cells that are not zero, as columns."""
    pairs, samples = torch.unique(labels * num_classes + predicted, return_counts=True)
    if num_classes > MAX_MATRIX_CLASSES:
        true, guessed = pairs // num_classes, pairs % num_classes
        return {"true": true.tolist(), "predicted": guessed.tolist(), "samples": samples.tolist()}
    matrix = torch.zeros(num_classes * num_classes, dtype=torch.int64)
    matrix[pairs] = samples
    rows: list[list[int]] = matrix.view(num_classes, num_classes).tolist()
    return rows


def area_under_roc(probabilities: Tensor, labels: Tensor) -> float:
    """The AUC of [N] probabilities in float64; `labels` must have both 0 and 1."""
    return float(classification.binary_auroc(probabilities, labels))


def roc_curve(probabilities: Tensor, labels: Tensor) -> dict[str, list[float]]:
    """The curve behind it, by at most `MAX_ROC_POINTS` points."""
    false_positive, true_positive, _ = classification.binary_roc(probabilities, labels)
    points = torch.linspace(0, len(false_positive) - 1, min(MAX_ROC_POINTS, len(false_positive))).long()
    return {
        "false_positive_rate": false_positive[points].tolist(),
        "true_positive_rate": true_positive[points].tolist(),
    }


@contextmanager
def counting() -> Iterator[None]:
    """A context in which torchmetrics counts with `bincount`, which on a CPU gives the same numbers each time.

    Where torch is set to be deterministic, torchmetrics compares each sample with each pair of classes instead, all at
    once, in memory.
    """
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("default")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)


def _take_out_undefined(columns: dict[str, list[Any]], num_predicted: list[int]) -> None:
    """Scores per class that divide zero by zero become None."""
    for index, (support, predicted) in enumerate(zip(columns["support"], num_predicted, strict=True)):
        undefined = {"precision": not predicted, "recall": not support, "f1": not predicted and not support}
        for name in (name for name, is_undefined in undefined.items() if is_undefined):
            columns[name][index] = None
