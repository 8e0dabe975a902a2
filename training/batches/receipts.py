"""Receipts: what the ranks have to say of a step's microbatches, in words that travel with the sum of its gradients.

Of each microbatch its loss, how many samples it has, the MD5 of their ids, and their rows. Invariant: a word is one
rank's and zero on all others, so their sum is what that rank said, and then every rank knows it. Nothing of a step is
known to one rank alone once its weights were changed.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.batches.tensors import Microbatch

MD5_WORDS = 2


@dataclass(frozen=True)
class ReceiptWords:
    """Where what stands, in int64 words, of batches of `batch_size` samples in `num_microbatches` microbatches (V).

    Losses [V], as the bits of fp64; numbers of samples [V]; MD5s of their ids [V, 2]; rows [batch_size], microbatch
    after microbatch.
    """

    num_microbatches: int
    batch_size: int

    @property
    def num_words(self) -> int:
        return self._first_row + self.batch_size

    @property
    def _first_row(self) -> int:
        return self.num_microbatches * (2 + MD5_WORDS)

    def of_samples(self, microbatches: Sequence[Microbatch]) -> Tensor:
        """The words of these microbatches behind the losses, int64 [num_words - V], on the CPU."""
        words = np.zeros(self.num_words, dtype=np.int64)
        _, sizes, digests, rows = self._parts(words)
        for microbatch in microbatches:
            sizes[microbatch.index] = len(microbatch.rows)
            digests[microbatch.index] = np.frombuffer(md5_of_ids(microbatch.ids), dtype=np.int64)
            rows[microbatch.starts_at : microbatch.starts_at + len(microbatch.rows)] = microbatch.rows
        return torch.from_numpy(words[self.num_microbatches :])

    def losses(self, words: Tensor) -> Tensor:
        """The losses of one step's words, fp64 [V]; nothing is copied."""
        return words[: self.num_microbatches].view(torch.float64)

    def samples(self, words: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Of the words of some steps [S, num_words]: sizes [S, V], digests [S, V, 2] and rows [S, batch_size]."""
        _, sizes, digests, rows = self._parts(words)
        return sizes, digests, rows

    def _parts(self, words: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        count, first_row = self.num_microbatches, self._first_row
        digests = words[..., 2 * count : first_row].reshape(*words.shape[:-1], count, MD5_WORDS)
        return words[..., :count], words[..., count : 2 * count], digests, words[..., first_row:]


def md5_of_ids(joined: bytes) -> bytes:
    """What the ledger knows of the ids of a microbatch's samples, joined in their order."""
    return hashlib.md5(joined, usedforsecurity=False).digest()
