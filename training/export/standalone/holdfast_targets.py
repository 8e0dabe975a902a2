"""What a model's outputs mean, for each kind of target: probabilities of its classes, and what is predicted.

Invariant: a prediction follows from a row's own outputs, and is the same whatever they are divided by to calibrate.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor


class Outputs(Protocol):
    """The outputs of a model for one kind of target; `logits` are [N, outputs]."""

    num_outputs: int
    answer: str  # what a prediction is called: label, or labels

    def probabilities(self, logits: Tensor) -> Tensor:
        """Probability of each class, [N, classes], in the type of the logits."""

    def predict(self, logits: Tensor) -> list[Any]:
        """What is predicted of each row, by the names of the classes."""


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


class _AnyNumber:
    """Any number of classes: each one whose probability is above one half."""

    answer = "labels"

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = classes
        self.num_outputs = len(classes)

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def predict(self, logits: Tensor) -> list[Any]:
        return [[self.classes[i] for i, is_had in enumerate(row) if is_had] for row in (logits > 0).tolist()]


KINDS: dict[str, Callable[[Sequence[str]], Outputs]] = {
    "multiclass": _OneOfSeveral,
    "binary": _OneOfTwo,
    "multilabel": _AnyNumber,
}


def outputs_of(kind: str, classes: Sequence[str]) -> Outputs:
    """The outputs of a model for a target of this kind, as `labels.json` names it, with these classes."""
    return KINDS[kind](classes)
