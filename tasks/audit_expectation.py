"""What a ledger must say: the leaves of each step, by the same pure functions that training asks.

Invariant: knows the number of rows, their lengths and the run's configuration, and nothing of what was consumed.
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.ledger import LEDGER_SCHEMA
from tasks.configuration import RunConfig
from training.leaves import leaf_cut
from training.order import SampleOrder

LEAVES_SCHEMA = pa.schema([LEDGER_SCHEMA.field(name) for name in ("step", "leaf", "rows")])


class Expectation:
    """Order and leaves of a run over `lengths` [N], the number of tokens of each row of the training split."""

    def __init__(self, config: RunConfig, lengths: NDArray[np.int32], group_rows: int) -> None:
        self.num_rows = len(lengths)
        self.batch_size = config.train.batch_size
        self._num_leaves = config.train.leaves
        self._lengths = lengths
        self._order = SampleOrder(self.num_rows, group_rows, config.train.seed)
        self._cut = leaf_cut(config.model)

    def leaves(self, steps: range) -> pa.Table:
        """One row for each leaf of these steps, with the columns of a ledger but the ids'."""
        rows = self._order.rows(steps.start * self.batch_size, len(steps) * self.batch_size)
        lengths = self._lengths[rows].astype(np.int64).reshape(len(steps), self.batch_size)
        cuts = [self._cut.cut(batch, self._num_leaves) for batch in lengths]
        sizes = np.array([len(leaf) for cut in cuts for leaf in cut])
        places = np.concatenate([leaf + i * self.batch_size for i, cut in enumerate(cuts) for leaf in cut])
        num_leaves = [len(cut) for cut in cuts]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        columns = [
            pa.array(np.repeat(np.arange(steps.start, steps.stop), num_leaves)),
            pa.array(np.concatenate([np.arange(count, dtype=np.int32) for count in num_leaves])),
            pa.ListArray.from_arrays(offsets, pa.array(rows[places]), type=LEAVES_SCHEMA.field("rows").type),
        ]
        return pa.Table.from_arrays(columns, schema=LEAVES_SCHEMA)

    def epochs(self, step: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows of a step's batch, and the epoch for which each of them is due."""
        first = step * self.batch_size
        epochs = np.arange(first, first + self.batch_size) // self.num_rows
        return self._order.rows(first, self.batch_size), epochs

    def epoch_of(self, step: int) -> int:
        """The epoch in which a step begins."""
        return step * self.batch_size // self.num_rows

    def steps_of(self, first_epoch: int, end_epoch: int) -> range:
        """Every step with a sample of the epochs [first_epoch, end_epoch)."""
        first, end = (epoch * self.num_rows for epoch in (first_epoch, end_epoch))
        return range(first // self.batch_size, -(-end // self.batch_size))

    def straddling(self, steps: range) -> list[int]:
        """Those of these steps whose batch has samples of more than one epoch."""
        begun = np.arange(steps.start, steps.stop) * self.batch_size
        straddles = begun // self.num_rows != (begun + self.batch_size - 1) // self.num_rows
        found: list[int] = (steps.start + np.flatnonzero(straddles)).tolist()
        return found
