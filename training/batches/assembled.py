"""Leaves as arrays: chosen samples one after the other, with padding, ready to be given to the model.

Invariant: no sample is a Python object, and each leaf is one slice of each array, so leaves that one process has
assembled are given to another by mapping the arrays.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.batches.groups import Group
from training.batches.leaves import LeafCut
from training.data.samples import Samples, new_array, take
from training.rank_shares import deal

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Leaf:
    """A part of a batch that goes through the model in one pass: B samples, group after group.

    A leaf that is flat has N tokens, padding included; one that is not is a single group of length T.
    """

    index: int
    rows: Integers  # [B] indices in the split
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


@dataclass(frozen=True)
class Assembled:
    """L leaves of N samples in G groups, with P tokens, padding included."""

    indices: Integers  # [L] of the leaves in their batch
    num_groups: Integers  # [L]
    group_sizes: Integers  # [G] in samples
    group_lengths: Integers  # [G] in tokens
    id_bytes: Integers  # [L] of the ids, with the separator that follows each id
    rows: Integers  # [N] as in `Leaf`, like the next four
    lengths: Integers
    numeric: NDArray[np.float32]
    categorical: Integers
    labels: Integers
    tokens: NDArray[Any]  # [P] as narrow as in the shards, 0 is padding
    ids: NDArray[np.uint8]  # UTF-8, with the separators

    def leaves(self, first: int, end: int, is_flat: bool) -> Iterator[Leaf]:
        """The leaves [first, end), as copies: what is mapped may not be written to, and goes away."""
        groups, samples, tokens, ids = self._bounds
        start, stop = samples[first], samples[end]
        own_tokens = new_array(tokens[end] - tokens[first], np.int32)
        own_tokens[...] = self.tokens[tokens[first] : tokens[end]]
        own_ids = self.ids[ids[first] : ids[end]].tobytes()
        rows, lengths, categorical, labels = (
            array[start:stop].copy() for array in (self.rows, self.lengths, self.categorical, self.labels)
        )
        numeric = self.numeric[start:stop].copy()
        indices: list[int] = self.indices[first:end].tolist()
        for leaf, index in enumerate(indices, first):
            a, b = samples[leaf] - start, samples[leaf + 1] - start
            of_leaf = own_tokens[tokens[leaf] - tokens[first] : tokens[leaf + 1] - tokens[first]]
            # Arrays are parted, not tensors: compiled code would notice that a tensor begins within another one.
            yield Leaf(
                index=index,
                rows=rows[a:b],
                ids=own_ids[ids[leaf] - ids[first] : ids[leaf + 1] - ids[first] - 1],
                groups=tuple(self._groups[groups[leaf] : groups[leaf + 1]]),
                tokens=torch.from_numpy(of_leaf if is_flat else of_leaf.reshape(b - a, -1)),
                lengths=torch.from_numpy(lengths[a:b]),
                numeric=torch.from_numpy(numeric[a:b]),
                categorical=torch.from_numpy(categorical[a:b]),
                labels=torch.from_numpy(labels[a:b]),
            )

    @cached_property
    def _groups(self) -> list[Group]:
        return list(map(Group, self.group_sizes.tolist(), self.group_lengths.tolist()))

    @cached_property
    def _bounds(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """Where the groups, samples, tokens and bytes of ids of each leaf begin, and those of the last one end."""
        groups = _ends(self.num_groups)
        samples, tokens = (_ends(sizes)[groups] for sizes in (self.group_sizes, self.group_sizes * self.group_lengths))
        return groups.tolist(), samples.tolist(), tokens.tolist(), _ends(self.id_bytes).tolist()


ASSEMBLED_FIELDS = tuple(Assembled.__dataclass_fields__)


def assemble(
    parts: Sequence[Samples],
    lengths: Integers,
    cut: LeafCut,
    num_leaves: int,
    num_ranks: int,
    ranks: Sequence[int],
) -> tuple[Assembled, list[int]]:
    """The leaves that these of `num_ranks` ranks have of a batch, rank after rank, and how many each of them has.

    Of the samples of other leaves nothing is read but their `lengths`, which are those of the batch in parts.
    """
    leaves = cut.cut(lengths, num_leaves)
    groups = cut.groups([lengths[leaf] for leaf in leaves])
    shares = deal([cut.cost(of_leaf) for of_leaf in groups], num_ranks)
    own = [index for rank in ranks for index in shares[rank]]
    places = np.concatenate([np.empty(0, dtype=np.int64), *(leaves[index] for index in own)])
    arrays = assemble_samples(take(parts, places), own, [groups[index] for index in own])
    return arrays, [len(shares[rank]) for rank in ranks]


def assemble_samples(samples: Samples, indices: Sequence[int], groups: Sequence[tuple[Group, ...]]) -> Assembled:
    """Leaves with these indices and groups, made of these samples one after the other."""
    num_groups = np.array([len(of_leaf) for of_leaf in groups], dtype=np.int64)
    sizes = np.array(list(chain(*groups)), dtype=np.int64).reshape(-1, 2)
    first_samples = _ends(sizes[:, 0])[_ends(num_groups)]
    return Assembled(
        indices=np.array(indices, dtype=np.int64),
        num_groups=num_groups,
        group_sizes=sizes[:, 0],
        group_lengths=sizes[:, 1],
        id_bytes=np.diff(_ends(samples.id_lengths)[first_samples]),
        rows=samples.rows,
        lengths=samples.lengths,
        numeric=samples.numeric,
        categorical=samples.categorical,
        labels=samples.labels,
        tokens=samples.padded_tokens(sizes),
        ids=samples.separated_ids(),
    )


def _ends(sizes: Integers) -> Integers:
    """Where each begins that follow one another, and where the last one ends."""
    ends = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends
