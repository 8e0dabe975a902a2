"""What a ledger must record: the microbatches of each step, by the same pure functions that training uses.

Invariant: knows the number of rows, the run's configuration and its rollbacks, and nothing of what was consumed.
"""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.runs.ledger import LEDGER_SCHEMA
from storage.runs.rollbacks.positions import end_position, first_position, same_stride, skipped_ranges, standing
from storage.runs.run_state import RollbackRecord
from tasks.configuration.run import RunConfig
from training.data.order import SampleOrder
from training.models.source import microbatch_cut

MICROBATCHES_SCHEMA = pa.schema([LEDGER_SCHEMA.field(name) for name in ("step", "microbatch", "rows")])


class Expectation:
    """Order and microbatches of a run over `num_rows` rows of the training split."""

    def __init__(
        self,
        config: RunConfig,
        num_rows: int,
        group_rows: int,
        rollbacks: Sequence[RollbackRecord] = (),
    ) -> None:
        self.rollbacks = standing(rollbacks)
        self.num_rows = num_rows
        self.batch_size = config.train.batch_size
        self._num_microbatches = config.train.microbatches
        self._order = SampleOrder(self.num_rows, group_rows, config.train.seed)
        self._cut = microbatch_cut(config.model, config.train)

    def rows(self, steps: range) -> NDArray[np.int64]:
        """The rows of these steps, in the order in which they are due, [S * batch size]."""
        return np.concatenate([self._rows(step_range) for step_range in same_stride(steps, self.rollbacks)])

    def microbatches(self, steps: range, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> pa.Table:
        """One row for each microbatch of these steps, with the columns of a ledger but the ids'.

        `rows` are those of the steps, `lengths` their numbers of tokens.
        """
        batches = lengths.reshape(len(steps), self.batch_size)
        cuts = [self._cut.cut(batch, self._num_microbatches) for batch in batches]
        sizes = np.array([len(microbatch) for cut in cuts for microbatch in cut])
        positions = np.concatenate(
            [microbatch + i * self.batch_size for i, cut in enumerate(cuts) for microbatch in cut]
        )
        num_microbatches = [len(cut) for cut in cuts]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        columns = [
            pa.array(np.repeat(np.arange(steps.start, steps.stop), num_microbatches)),
            pa.array(np.concatenate([np.arange(count, dtype=np.int32) for count in num_microbatches])),
            pa.ListArray.from_arrays(offsets, pa.array(rows[positions]), type=MICROBATCHES_SCHEMA.field("rows").type),
        ]
        return pa.Table.from_arrays(columns, schema=MICROBATCHES_SCHEMA)

    def epochs(self, step: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows of a step's batch, and the epoch for which each of them is due."""
        first = self._first_position(step)
        epochs = np.arange(first, first + self.batch_size) // self.num_rows
        return self._order.rows(first, self.batch_size), epochs

    def epoch_of(self, step: int) -> int:
        """The epoch in which a step begins."""
        return self._first_position(step) // self.num_rows

    def epoch_sql(self) -> str:
        """The same as SQL over a column `step`."""
        ahead = "".join(
            f" WHEN step >= {record.resume_step} THEN {record.end_position - record.resume_step * self.batch_size}"
            for record in reversed(self.rollbacks)
        )
        shift = f" + CASE{ahead} ELSE 0 END" if ahead else ""
        return f"(step * {self.batch_size}{shift}) // {self.num_rows}"

    def steps_of(self, first_epoch: int, end_epoch: int, end_step: int) -> range:
        """Every step before `end_step` with a sample of the epochs [first_epoch, end_epoch)."""
        first, end = (epoch * self.num_rows for epoch in (first_epoch, end_epoch))
        start = bisect_left(range(end_step), first, key=lambda step: self._first_position(step) + self.batch_size - 1)
        return range(start, bisect_left(range(end_step), end, lo=start, key=self._first_position))

    def straddling(self, steps: range) -> list[int]:
        """Those of these steps whose batch has samples of more than one epoch."""
        begun = np.concatenate([np.empty(0, np.int64), *map(self._positions, same_stride(steps, self.rollbacks))])
        straddles = begun // self.num_rows != (begun + self.batch_size - 1) // self.num_rows
        found: list[int] = (steps.start + np.flatnonzero(straddles)).tolist()
        return found

    def end_position(self, end_step: int) -> int:
        """Where in the order the samples of the steps before `end_step` end."""
        return end_position(end_step, self.batch_size, self.rollbacks)

    def skipped_rows(self, epoch: int, end_step: int) -> NDArray[np.int64]:
        """Rows of the epoch that the rollbacks before `end_step` left out."""
        first, end = epoch * self.num_rows, (epoch + 1) * self.num_rows
        ranges = [(max(first, a), min(end, b)) for a, b in skipped_ranges(0, end_step, self.rollbacks)]
        parts = [self._order.rows(start, stop - start) for start, stop in ranges if start < stop]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def _first_position(self, step: int) -> int:
        return first_position(step, self.batch_size, self.rollbacks)

    def _positions(self, steps: range) -> NDArray[np.int64]:
        """First positions of steps of one stride."""
        return self._first_position(steps.start) + self.batch_size * np.arange(len(steps))

    def _rows(self, steps: range) -> NDArray[np.int64]:
        """The rows of steps of one stride."""
        return self._order.rows(self._first_position(steps.start), len(steps) * self.batch_size)
