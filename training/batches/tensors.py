"""Leaves as tensors, as the model is given them.

Invariant: a leaf is a copy of its own of what was assembled, and holds nothing of other leaves.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.batches.assembled import Assembled
from training.batches.groups import Group
from training.data.samples import new_array


@dataclass(frozen=True)
class Leaf:
    """A part of a batch that goes through the model in one pass: B samples, group after group.

    A leaf that is flat has N tokens, padding included; one that is not is a single group of length T.
    """

    index: int
    rows: NDArray[np.int64]  # [B] indices in the split
    ids: bytes  # UTF-8, joined by the ledger's separator, as read beside the tokens
    groups: tuple[Group, ...]
    tokens: Tensor  # [N], or [B, T] if it is not flat; int32, 0 is padding
    lengths: Tensor  # [B] int64
    numeric: Tensor  # [B, 2K] float32
    categorical: Tensor  # [B, C] int64
    labels: Tensor  # [B] int64

    @property
    def is_flat(self) -> bool:
        """Whether the tokens of all groups stand one after the other."""
        return self.tokens.ndim == 1

    def to(self, device: torch.device) -> "Leaf":
        """The same leaf on the device; the copy does not make the CPU wait."""
        moved = (
            tensor.to(device, non_blocking=True)
            for tensor in (self.tokens, self.lengths, self.numeric, self.categorical, self.labels)
        )
        return Leaf(self.index, self.rows, self.ids, self.groups, *moved)

    def pinned(self) -> "Leaf":
        """The same leaf in page-locked memory, from where a GPU can fetch it by itself."""
        pinned = (t.pin_memory() for t in (self.tokens, self.lengths, self.numeric, self.categorical, self.labels))
        return Leaf(self.index, self.rows, self.ids, self.groups, *pinned)


def to_leaves(assembled: Assembled, first: int, end: int, is_flat: bool) -> Iterator[Leaf]:
    """The leaves [first, end), as copies: what is mapped may not be written to, and goes away."""
    groups, samples, tokens, ids = assembled.bounds
    start, stop = samples[first], samples[end]
    own_tokens = new_array(tokens[end] - tokens[first], np.int32)
    own_tokens[...] = assembled.tokens[tokens[first] : tokens[end]]
    own_ids = assembled.ids[ids[first] : ids[end]].tobytes()
    rows, lengths, categorical, labels = (
        array[start:stop].copy()
        for array in (assembled.rows, assembled.lengths, assembled.categorical, assembled.labels)
    )
    numeric = assembled.numeric[start:stop].copy()
    indices: list[int] = assembled.indices[first:end].tolist()
    own_groups = assembled.groups(groups[first], groups[end])
    for leaf, index in enumerate(indices, first):
        a, b = samples[leaf] - start, samples[leaf + 1] - start
        of_leaf = own_tokens[tokens[leaf] - tokens[first] : tokens[leaf + 1] - tokens[first]]
        # Arrays are parted, not tensors: compiled code would notice that a tensor begins within another one.
        yield Leaf(
            index=index,
            rows=rows[a:b],
            ids=own_ids[ids[leaf] - ids[first] : ids[leaf + 1] - ids[first] - 1],
            groups=tuple(own_groups[groups[leaf] - groups[first] : groups[leaf + 1] - groups[first]]),
            tokens=torch.from_numpy(of_leaf if is_flat else of_leaf.reshape(b - a, -1)),
            lengths=torch.from_numpy(lengths[a:b]),
            numeric=torch.from_numpy(numeric[a:b]),
            categorical=torch.from_numpy(categorical[a:b]),
            labels=torch.from_numpy(labels[a:b]),
        )
