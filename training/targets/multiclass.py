"""One class of several: a logit for each, and the highest one is the prediction."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional

from storage.target_kinds import metrics_with
from training.targets.class_scores import score_classes, tabulate_classes
from training.targets.extra_scores import score_extra
from training.targets.kind import Claims
from training.targets.one_class import OneClass


class Multiclass(OneClass):
    """Cross entropy over all classes; judged by macro-F1, which counts rare classes as much as frequent ones."""

    problem_type = None  # it is what transformers takes it for

    def __init__(self, classes: Sequence[str], extra_metrics: Sequence[str] = ()) -> None:
        self.classes = self.output_classes = classes
        self.metrics = metrics_with("multiclass", extra_metrics)
        self._extra = extra_metrics
        self.num_outputs = len(classes)

    def sample_losses(self, logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
        return functional.cross_entropy(logits.float(), labels, reduction="none", label_smoothing=label_smoothing)

    def predict(self, logits: Tensor) -> Tensor:
        return logits.argmax(dim=1)

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=1)

    def scores(self, logits: Tensor, labels: Tensor) -> dict[str, float]:
        predicted = self.predict(logits)
        usual = score_classes(predicted, labels, len(self.classes))
        if not self._extra:
            return usual
        probabilities = self.probabilities(logits.double())
        return score_extra(self._extra, predicted, probabilities, labels, len(self.classes)) | usual

    def tables(self, logits: Tensor, labels: Tensor) -> dict[str, Any]:
        return tabulate_classes(self.predict(logits), labels, self.classes)

    def decisions(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return logits.double(), labels

    def claims(self, probabilities: Tensor, right: Tensor) -> Claims:
        """The probability of the predicted class, and whether that is the right one."""
        claimed, predicted = probabilities.max(dim=1)
        return Claims(claimed, right == predicted)

    def thresholds(self, fitted: Claims, measured: Claims) -> None:
        return None
