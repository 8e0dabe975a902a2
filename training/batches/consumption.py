"""What went through the model since the last checkpoint, for the ledger.

Invariant: a microbatch is recorded after its backward pass, from the very object whose tensors the model was given;
what was taken and never trained on is never recorded.
"""

import hashlib

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from storage.runs.ledger import LEDGER_SCHEMA
from training.batches.tensors import Microbatch
from training.rank_status import Collective
from training.world import World

ROWS_TYPE = LEDGER_SCHEMA.field("rows").type
_HEAD_WORDS = 5  # step, microbatch, number of samples, two halves of the MD5 of the ids


class Consumption:
    """Records this rank's microbatches, and brings those of all ranks together."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._heads: list[NDArray[np.int64]] = []
        self._rows: list[NDArray[np.int64]] = []

    def record(self, step: int, microbatch: Microbatch) -> None:
        """Note a microbatch that the model has consumed."""
        digest = np.frombuffer(md5_of_ids(microbatch.ids), dtype=np.int64)
        self._heads.append(np.array([step, microbatch.index, len(microbatch.rows), *digest]))
        self._rows.append(microbatch.rows)

    def collect(self) -> pa.Table | None:
        """All ranks' microbatches since the last call, in order; for the first rank alone. A collective."""
        heads = self._gather(np.concatenate([np.empty(0, dtype=np.int64), *self._heads]))
        rows = self._gather(np.concatenate([np.empty(0, dtype=np.int64), *self._rows]))
        self._heads.clear()
        self._rows.clear()
        return _make_table(heads.reshape(-1, _HEAD_WORDS), rows) if self._world.is_first else None

    def _gather(self, words: NDArray[np.int64]) -> NDArray[np.int64]:
        """The words of all ranks one after the other, on the first rank; nothing on others."""
        if self._world.size == 1:
            return words
        mine = torch.from_numpy(words)
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self._world.size)]
        with self._world.rank_status.waiting_for_ranks(Collective.LEDGER):
            dist.all_gather(counts, torch.tensor([len(words)]))
        longest = max(int(count) for count in counts)
        padded = torch.nn.functional.pad(mine, (0, longest - len(words)))
        parts: list[Tensor] | None = None
        if self._world.is_first:
            parts = [torch.empty_like(padded) for _ in range(self._world.size)]
        with self._world.rank_status.waiting_for_ranks(Collective.LEDGER):
            dist.gather(padded, parts)
        kept = [part[: int(count)] for part, count in zip(parts or [], counts, strict=False)]
        return torch.cat(kept).numpy() if kept else np.empty(0, dtype=np.int64)


def md5_of_ids(joined: bytes) -> bytes:
    """What the ledger knows of the ids of a microbatch's samples, joined in their order."""
    return hashlib.md5(joined, usedforsecurity=False).digest()


def _make_table(heads: NDArray[np.int64], rows: NDArray[np.int64]) -> pa.Table:
    """Microbatches as rows of the ledger; `heads` [microbatches, 5], `rows` of all microbatches one after the other."""
    offsets = np.concatenate([[0], np.cumsum(heads[:, 2])]).astype(np.int32)
    digests = np.ascontiguousarray(heads[:, 3:])
    columns = [
        _integers(pa.int64(), heads[:, 0]),
        _integers(pa.int32(), heads[:, 1].astype(np.int32)),
        pa.ListArray.from_arrays(_integers(pa.int32(), offsets), _integers(pa.int64(), rows), type=ROWS_TYPE),
        pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(heads), [None, pa.py_buffer(digests)]),
    ]
    return pa.Table.from_arrays(columns, schema=LEDGER_SCHEMA).sort_by(
        [("step", "ascending"), ("microbatch", "ascending")]
    )


def _integers(kind: pa.DataType, values: NDArray[np.int32] | NDArray[np.int64]) -> pa.Array:
    """What `pa.array` gives, which would import pandas for it: half a second in the middle of the first save."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
