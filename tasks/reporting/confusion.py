"""The confusion of an evaluation: which classes were taken for which, in the memory of its cells that have a sample.

An evaluation has it as a matrix, or, of very many classes, as the cells of that matrix that are not zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

CELL_FIELDS = ("true", "predicted", "samples")

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Confusion:
    """Cells with samples, in the order of a matrix: `true`, `predicted` and `samples` are [N], all integers."""

    num_classes: int
    true: Array
    predicted: Array
    samples: Array

    @property
    def shares(self) -> Array:
        """[N], of all samples of the true class."""
        supports = np.bincount(self.true, weights=self.samples, minlength=self.num_classes)
        return np.asarray(self.samples / supports[self.true])

    @property
    def num_samples(self) -> int:
        return int(self.samples.sum())

    @property
    def num_right(self) -> int:
        return int(self.samples[self.true == self.predicted].sum())

    def find_worst(self, most: int) -> Array:
        """Indices of the `most` cells beside the diagonal with the most samples; of equal ones the first."""
        wrong = np.flatnonzero(self.true != self.predicted)
        return wrong[np.argsort(-self.samples[wrong], kind="stable")[:most]]

    def largest_shares(self, side: int) -> Array:
        """[side, side]: the largest share among the cells of each square of classes; `side` at most `num_classes`."""
        found = np.zeros((side, side))
        places = (self.true * side // self.num_classes, self.predicted * side // self.num_classes)
        np.maximum.at(found, places, self.shares)
        return found


def read_confusion(evaluation: Mapping[str, Any] | None) -> Confusion | None:
    """The confusion of an evaluation; None where it has none, as where a sample may have several classes."""
    recorded = evaluation["confusion"] if evaluation is not None else None
    if evaluation is None or not recorded:
        return None
    num_classes = len(evaluation["classes"])
    if isinstance(recorded, Mapping):
        true, predicted, samples = (np.array(recorded[name], dtype=np.int64) for name in CELL_FIELDS)
        return Confusion(num_classes, true, predicted, samples)
    matrix = np.array(recorded, dtype=np.int64)
    true, predicted = np.nonzero(matrix)
    return Confusion(num_classes, true, predicted, matrix[true, predicted])
