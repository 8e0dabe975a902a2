"""What a model's outputs mean, for each kind of target: probabilities of its classes, and what is predicted.

Invariant: a prediction follows from a row's own outputs. It is the same whatever they are divided by to calibrate, but
for one by fitted thresholds, which are thresholds of calibrated probabilities.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

# A class that no row had on which thresholds were fitted has none: it is predicted above one half, as without them.
ABOVE_ONE_HALF = math.nextafter(0.5, 1.0)


class Outputs(Protocol):
    """The outputs of a model for one kind of target; `logits` are [N, outputs]."""

    num_outputs: int
    answer: str  # what a prediction is called: label, or labels

    def probabilities(self, logits: Tensor) -> Tensor:
        """Probability of each class, [N, classes], in the type of the logits."""

    def predict(self, logits: Tensor) -> list[Any]:
        """What is predicted of each row, by the names of the classes."""

    def fitted_thresholds(self, calibration: Mapping[str, Any]) -> list[float] | None:
        """Of the content of `calibration.json` a threshold for each output; None where none decides."""

    def predict_by(self, thresholds: Sequence[float], probabilities: Tensor) -> list[Any]:
        """As `predict`, where a class counts from its threshold on; calibrated probabilities, [N, classes]."""


class _OneOfSeveral:
    """One class of several: the most probable one."""

    answer = "label"

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = classes
        self.num_outputs = len(classes)

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=1)

    def predict(self, logits: Tensor) -> list[Any]:
        return [self.classes[index] for index in logits.argmax(dim=1).tolist()]

    def fitted_thresholds(self, calibration: Mapping[str, Any]) -> list[float] | None:
        return None

    def predict_by(self, thresholds: Sequence[float], probabilities: Tensor) -> list[Any]:
        raise ValueError("of several classes the most probable one is predicted: there is no threshold")


class _OneOfTwo:
    """The second class of two, where its probability is above one half; the first one otherwise."""

    answer = "label"
    num_outputs = 1

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = classes

    def probabilities(self, logits: Tensor) -> Tensor:
        return torch.cat([(-logits).sigmoid(), logits.sigmoid()], dim=1)

    def predict(self, logits: Tensor) -> list[Any]:
        return [self.classes[is_second] for is_second in (logits[:, 0] > 0).tolist()]

    def fitted_thresholds(self, calibration: Mapping[str, Any]) -> list[float] | None:
        return [float(calibration["thresholds"]["best"]["threshold"])]

    def predict_by(self, thresholds: Sequence[float], probabilities: Tensor) -> list[Any]:
        return [self.classes[is_second] for is_second in (probabilities[:, 1] >= thresholds[0]).tolist()]


class _AnyNumber:
    """Any number of classes: each one whose probability is above one half."""

    answer = "labels"

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = classes
        self.num_outputs = len(classes)

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def predict(self, logits: Tensor) -> list[Any]:
        return self._named(logits > 0)

    def fitted_thresholds(self, calibration: Mapping[str, Any]) -> list[float] | None:
        best = {entry["class"]: entry["best"] for entry in calibration["thresholds"]["per_class"]}
        return [ABOVE_ONE_HALF if best[name] is None else float(best[name]["threshold"]) for name in self.classes]

    def predict_by(self, thresholds: Sequence[float], probabilities: Tensor) -> list[Any]:
        return self._named(probabilities >= torch.tensor(thresholds, dtype=probabilities.dtype))

    def _named(self, are_had: Tensor) -> list[Any]:
        return [[self.classes[i] for i, is_had in enumerate(row) if is_had] for row in are_had.tolist()]


KINDS: dict[str, Callable[[Sequence[str]], Outputs]] = {
    "multiclass": _OneOfSeveral,
    "binary": _OneOfTwo,
    "multilabel": _AnyNumber,
}


def outputs_of(kind: str, classes: Sequence[str]) -> Outputs:
    """The outputs of a model for a target of this kind, as `labels.json` names it, with these classes."""
    return KINDS[kind](classes)
