"""One class of two: a single logit, that of the second class, which is predicted where it is above 0."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from storage.target_kinds import metrics_with
from training.targets.class_scores import area_under_roc, roc_curve, score_classes, tabulate_classes
from training.targets.extra_scores import score_extra
from training.targets.kind import Claims
from training.targets.one_class import OneClass
from training.targets.thresholds import choose_threshold


class Binary(OneClass):
    """Binary cross entropy; judged by the area under the ROC curve, which no threshold decides."""

    num_outputs = 1
    problem_type = None  # of one output transformers knows a regression alone

    def __init__(self, classes: Sequence[str], extra_metrics: Sequence[str] = ()) -> None:
        self.classes = classes
        self.output_classes = classes[1:]
        self.metrics = metrics_with("binary", extra_metrics)
        self._extra = extra_metrics

    def sample_losses(self, logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
        targets = labels.float() * (1 - label_smoothing) + label_smoothing / 2
        return functional.binary_cross_entropy_with_logits(logits.float()[:, 0], targets, reduction="none")

    def predict(self, logits: Tensor) -> Tensor:
        return (logits[:, 0] > 0).long()

    def probabilities(self, logits: Tensor) -> Tensor:
        return torch.cat([(-logits).sigmoid(), logits.sigmoid()], dim=1)

    def scores(self, logits: Tensor, labels: Tensor) -> dict[str, float]:
        """Scores, without the AUC of labels of one class, which is not defined."""
        predicted = self.predict(logits)
        extra = score_extra(self._extra, predicted, _positive(logits), labels) if self._extra else {}
        found = extra | score_classes(predicted, labels, len(self.classes))
        return found | {"auc": area_under_roc(_positive(logits), labels)} if _has_both_classes(labels) else found

    def tables(self, logits: Tensor, labels: Tensor) -> dict[str, Any]:
        roc = roc_curve(_positive(logits), labels) if _has_both_classes(labels) else None
        return tabulate_classes(self.predict(logits), labels, self.classes) | {"roc": roc}

    def decisions(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = logits.double()
        return torch.cat([torch.zeros_like(logits), logits], dim=1), labels

    def claims(self, probabilities: Tensor, right: Tensor) -> Claims:
        """The probability of the second class, whether it is predicted or not."""
        return Claims(probabilities[:, 1], right == 1)

    def thresholds(self, fitted: Claims, measured: Claims) -> dict[str, Any]:
        return choose_threshold(*fitted, *measured)


def _positive(logits: Tensor) -> Tensor:
    """Probability of the second class, [N] in float64."""
    return logits[:, 0].double().sigmoid()


def _has_both_classes(labels: Tensor) -> bool:
    return len(labels) > 0 and bool((labels != labels[0]).any())
