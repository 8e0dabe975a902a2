"""Metrics that a run asks for by their names in torchmetrics: `storage.target_kinds.EXTRA_METRICS`.

Those of predictions are of the predicted classes, for a binary target with the second class as the positive one; those
of probabilities need no threshold. Of several classes each is torchmetrics' mean over classes, those of probabilities
over the classes that occur. Invariant: what is not defined for the samples is left out, so there is no NaN.
"""

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from storage.lazy_imports import lazy_imports
from storage.target_kinds import NEED_CLASSES
from training.targets.class_scores import counting

# It loads torchmetrics, which only a process that scores needs.
with lazy_imports():
    import training.targets.classification as classification

RANKING = ("auroc", "average_precision")
# Their mean over classes is a choice; the others are one number of all classes together.
AVERAGED = ("jaccard_index", "precision", "recall", "specificity")


def score_extra(
    names: Sequence[str], predicted: Tensor, probabilities: Tensor, labels: Tensor, num_classes: int | None = None
) -> dict[str, float]:
    """The metrics by their names, the last in the alphabet first.

    `predicted` and `labels` are [N], `probabilities` [N, classes] in float64; without `num_classes` the target is
    binary, and they are [N], of the second class.
    """
    is_one_class = not len(labels) or bool((labels == labels[0]).all())
    defined = [name for name in sorted(names, reverse=True) if not (is_one_class and name in NEED_CLASSES)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is not defined for a class: it is left out of the mean
        if num_classes is None:
            found = {name: _binary(name, predicted, probabilities, labels) for name in defined}
        else:
            found = {name: _multiclass(name, predicted, probabilities, labels, num_classes) for name in defined}
    return {name: value for name, value in found.items() if not math.isnan(value)}


def _binary(name: str, predicted: Tensor, probabilities: Tensor, labels: Tensor) -> float:
    function = getattr(classification, f"binary_{name}")
    if _is_of_probabilities(name):
        return float(function(probabilities, labels))
    with counting():
        return float(function(predicted, labels))


def _multiclass(name: str, predicted: Tensor, probabilities: Tensor, labels: Tensor, num_classes: int) -> float:
    function = getattr(classification, f"multiclass_{name}")
    if name in RANKING:
        # torchmetrics' own mean would count the AUC of a class without samples as 0.
        of_each = function(probabilities, labels, num_classes, average="none")
        return float(of_each[torch.bincount(labels, minlength=num_classes) > 0].mean())
    if _is_of_probabilities(name):
        return float(function(probabilities, labels, num_classes))
    with counting():
        return float(function(predicted, labels, num_classes, **({"average": "macro"} if name in AVERAGED else {})))


def _is_of_probabilities(name: str) -> bool:
    return name in RANKING or name == "calibration_error"
