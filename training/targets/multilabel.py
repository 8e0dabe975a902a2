"""Any number of classes at once, or none: a logit for each class, which is predicted where its logit is above 0."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from storage.target_kinds import metrics_with
from training.targets.class_weights import inverse_frequencies
from training.targets.kind import Claims
from training.targets.label_scores import score_extra_labels, score_labels, tabulate_labels
from training.targets.thresholds import find_best, score_at


class Multilabel:
    """Binary cross entropy of each class, of which a sample's loss is the mean; judged by mean average precision.

    No threshold decides on that, and each class counts the same, however rare. A label is 1 for each class that the
    sample has, and 0 for the others.
    """

    problem_type = "multi_label_classification"

    def __init__(self, classes: Sequence[str], extra_metrics: Sequence[str] = ()) -> None:
        self.classes = self.output_classes = classes
        self.metrics = metrics_with("multilabel", extra_metrics)
        self._extra = extra_metrics
        self.num_outputs = len(classes)
        self.label_shape = (len(classes),)

    def sample_losses(self, logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
        return _losses_of_classes(logits, labels, label_smoothing).mean(dim=1)

    def class_weights(self, class_counts: Sequence[int], num_rows: int, exponent: float) -> Tensor:
        """[classes, 2]: of each class the weights of a sample without it and of one with it, as of a binary target."""
        having = torch.tensor(class_counts, dtype=torch.float64)
        return inverse_frequencies(torch.stack([num_rows - having, having], dim=1), exponent).float()

    def weighted_losses(
        self, logits: Tensor, labels: Tensor, class_weights: Tensor, label_smoothing: float = 0.0
    ) -> Tensor:
        weights = torch.where(labels > 0, class_weights[:, 1], class_weights[:, 0])
        return (_losses_of_classes(logits, labels, label_smoothing) * weights).mean(dim=1)

    def predict(self, logits: Tensor) -> Tensor:
        return (logits > 0).long()

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def scores(self, logits: Tensor, labels: Tensor) -> dict[str, float]:
        """Scores; without the mean average precision of samples that have no label at all, which is not defined."""
        predicted, probabilities = self.predict(logits), self.probabilities(logits.double())
        extra = score_extra_labels(self._extra, predicted, probabilities, labels) if self._extra else {}
        return extra | score_labels(predicted, probabilities, labels)

    def tables(self, logits: Tensor, labels: Tensor) -> dict[str, Any]:
        return tabulate_labels(self.predict(logits), self.probabilities(logits.double()), labels, self.classes)

    def decisions(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Whether a sample has a class, class after class of one sample after the other."""
        having = logits.double().reshape(-1)
        return torch.stack([torch.zeros_like(having), having], dim=1), labels.reshape(-1)

    def claims(self, probabilities: Tensor, right: Tensor) -> Claims:
        """The probability of each class, whether it is predicted or not."""
        return Claims(probabilities[:, 1], right == 1)

    def thresholds(self, fitted: Claims, measured: Claims) -> dict[str, Any]:
        """`per_class`: the best threshold of each class, with its scores; None of a class that no sample has."""
        parts = [
            values.reshape(-1, len(self.classes)).unbind(dim=1)
            for values in (fitted.claimed, fitted.came_true.long(), measured.claimed, measured.came_true.long())
        ]
        return {
            "per_class": [
                {"class": name, "best": _best_of_class(*of_class)}
                for name, *of_class in zip(self.classes, *parts, strict=True)
            ]
        }


def _losses_of_classes(logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    """[N, classes] in fp32."""
    targets = labels.float() * (1 - label_smoothing) + label_smoothing / 2
    return functional.binary_cross_entropy_with_logits(logits.float(), targets, reduction="none")


def _best_of_class(
    probabilities: Tensor, having: Tensor, measured: Tensor, measured_having: Tensor
) -> dict[str, Any] | None:
    if not having.any():
        return None
    best = find_best(probabilities, having)
    return score_at(probabilities, having, best) | {"measured": score_at(measured, measured_having, best)}
