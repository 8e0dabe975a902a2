"""What went through the model since the ledger's last part, for the next one.

Invariant: a step is recorded after its weights were changed, from the receipts that each rank wrote of the very objects
whose tensors the model was given; what was taken and never trained on is never recorded. Every rank knows all of it.
"""

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from storage.runs.ledger import LEDGER_SCHEMA
from training.batches.receipts import ReceiptWords

ROWS_TYPE = LEDGER_SCHEMA.field("rows").type


class Consumption:
    """The receipts of steps, on the device until they are read."""

    def __init__(self, receipts: ReceiptWords) -> None:
        self._receipts = receipts
        self._steps: list[int] = []
        self._words: list[Tensor] = []

    def record(self, step: int, words: Tensor) -> None:
        """Note a step that the model has consumed; `words` [num_words], of all ranks, belong to this from here on."""
        self._steps.append(step)
        self._words.append(words)

    def replace(self, steps: Tensor, words: Tensor) -> None:
        """Know what another rank does: the steps int64 [S] and their words [S, num_words], on the device."""
        self._steps, self._words = steps.tolist(), list(words)

    def forget_before(self, step: int) -> None:
        """The ledger has all steps before this one."""
        count = sum(recorded < step for recorded in self._steps)
        del self._steps[:count]
        del self._words[:count]

    def table(self) -> pa.Table:
        """The microbatches of all steps that are not forgotten, in order, as rows of the ledger."""
        steps, words = self.as_words()
        sizes, digests, rows = self._receipts.samples(words.numpy())
        num_steps, count = sizes.shape
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        columns = [
            _integers(pa.int64(), np.repeat(steps.numpy(), count)),
            _integers(pa.int32(), np.tile(np.arange(count, dtype=np.int32), num_steps)),
            pa.ListArray.from_arrays(
                _integers(pa.int32(), offsets), _integers(pa.int64(), rows.reshape(-1)), type=ROWS_TYPE
            ),
            pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(16), num_steps * count, [None, pa.py_buffer(np.ascontiguousarray(digests))]
            ),
        ]
        return pa.Table.from_arrays(columns, schema=LEDGER_SCHEMA)

    def as_words(self) -> tuple[Tensor, Tensor]:
        """The steps that are not forgotten, int64 [S], and their words [S, num_words], on the CPU."""
        words = torch.stack(self._words).cpu() if self._words else torch.zeros(0, self._receipts.num_words).long()
        return torch.tensor(self._steps, dtype=torch.int64), words


def _integers(kind: pa.DataType, values: NDArray[np.int32] | NDArray[np.int64]) -> pa.Array:
    """What `pa.array` gives, which would import pandas for it: half a second in the middle of the first save."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
