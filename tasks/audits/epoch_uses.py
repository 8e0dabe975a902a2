"""How often the rows of some epochs were used: counted in one bit for each row and epoch.

Invariant: knows nothing of the order in which rows are due.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class EpochCount:
    """How often the rows of an epoch were used: samples in all, and different rows of the split."""

    epoch: int
    num_samples: int
    num_rows: int


class EpochUses:
    """Uses of a split of `num_rows` rows in `epochs`."""

    def __init__(self, epochs: range, num_rows: int) -> None:
        self._epochs = epochs
        self._num_rows = num_rows
        self._num_samples = np.zeros(len(epochs), np.int64)
        self._used = np.zeros((len(epochs), -(-num_rows // 8)), np.uint8)

    def add(self, epochs: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        """Uses of `rows` [N] for `epochs` [N]; those of other epochs do not count, rows that are not there do."""
        counts = (epochs >= self._epochs.start) & (epochs < self._epochs.stop)
        indices, rows = epochs[counts] - self._epochs.start, rows[counts]
        self._num_samples += np.bincount(indices, minlength=len(self._epochs))
        there = (rows >= 0) & (rows < self._num_rows)
        indices, rows = indices[there], rows[there]
        np.bitwise_or.at(self._used, (indices, rows // 8), np.uint8(1) << (rows % 8).astype(np.uint8))

    def counts(self) -> list[EpochCount]:
        """Of each epoch that has a use, in their order."""
        num_rows = np.bitwise_count(self._used).sum(axis=1, dtype=np.int64)
        counted = zip(self._epochs, self._num_samples.tolist(), num_rows.tolist(), strict=True)
        return [EpochCount(*count) for count in counted if count[1]]
