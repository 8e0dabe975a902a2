"""Microbatches as arrays: chosen samples one after the other, with padding, ready to be given to the model.

Invariant: no sample is a Python object, and each microbatch is one slice of each array, so microbatches that one
process has assembled are given to another by mapping the arrays. Torch is not imported.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.batches.groups import Group
from training.batches.microbatches import MicrobatchCut
from training.data.samples import Samples
from training.rank_shares import assign

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Assembled:
    """L microbatches of N samples in G groups, with P tokens, padding included."""

    indices: Integers  # [L] of the microbatches in their batch
    starts: Integers  # [L] samples of the batch's microbatches before
    num_groups: Integers  # [L]
    group_sizes: Integers  # [G] in samples
    group_lengths: Integers  # [G] in tokens
    id_bytes: Integers  # [L] of the ids, with the separator that follows each id
    rows: Integers  # [N] indices in the split; like the next five, sample after sample
    lengths: Integers
    numeric: NDArray[np.float32]
    categorical: Integers
    labels: NDArray[np.integer[Any]]
    weights: NDArray[np.float32]
    tokens: NDArray[Any]  # [P] as narrow as in the shards, 0 is padding
    ids: NDArray[np.uint8]  # UTF-8, with the separators

    def groups(self, first: int, end: int) -> list[Group]:
        """The groups [first, end) of all microbatches'."""
        return list(map(Group, self.group_sizes[first:end].tolist(), self.group_lengths[first:end].tolist()))

    @cached_property
    def bounds(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """Starts of groups, samples, tokens and bytes of ids of each microbatch, and the ends of the last."""
        groups = _ends(self.num_groups)
        samples, tokens = (_ends(sizes)[groups] for sizes in (self.group_sizes, self.group_sizes * self.group_lengths))
        return groups.tolist(), samples.tolist(), tokens.tolist(), _ends(self.id_bytes).tolist()


ASSEMBLED_FIELDS = tuple(Assembled.__dataclass_fields__)


class RankShare(NamedTuple):
    """What one rank gets of a batch: microbatch after microbatch."""

    microbatches: list[Integers]  # positions in the batch of the samples of each one
    indices: list[int]  # of the microbatches, in the batch
    starts: list[int]  # of each one: how many samples the batch's microbatches before it have
    groups: list[tuple[Group, ...]]  # of each microbatch


def share_batch(lengths: Integers, cut: MicrobatchCut, num_microbatches: int, num_ranks: int) -> list[RankShare]:
    """What each rank gets of a batch whose samples have these lengths."""
    microbatches = cut.cut(lengths, num_microbatches)
    groups = cut.groups([lengths[microbatch] for microbatch in microbatches])
    starts = [0, *accumulate(map(len, microbatches))]
    shares = assign([cut.cost(of_microbatch) for of_microbatch in groups], num_ranks)
    return [
        RankShare(
            [microbatches[index] for index in own],
            own,
            [starts[index] for index in own],
            [groups[index] for index in own],
        )
        for own in shares
    ]


def assemble_shares(samples: Samples, shares: Sequence[RankShare], batch_starts: Sequence[int]) -> Assembled:
    """The microbatches of these shares, one after the other. The batch of each begins at that index of the samples."""
    microbatches = [microbatch for share in shares for microbatch in share.microbatches]
    begins = np.repeat(np.array(batch_starts, dtype=np.int64), [sum(map(len, share.microbatches)) for share in shares])
    return assemble_samples(
        samples.at(np.concatenate([np.empty(0, dtype=np.int64), *microbatches]) + begins),
        [index for share in shares for index in share.indices],
        [groups for share in shares for groups in share.groups],
        [start for share in shares for start in share.starts],
    )


def assemble_samples(
    samples: Samples, indices: Sequence[int], groups: Sequence[tuple[Group, ...]], starts: Sequence[int]
) -> Assembled:
    """Microbatches with these indices, groups and starts, made of these samples one after the other."""
    num_groups = np.array([len(of_microbatch) for of_microbatch in groups], dtype=np.int64)
    sizes = np.array(list(chain(*groups)), dtype=np.int64).reshape(-1, 2)
    first_samples = _ends(sizes[:, 0])[_ends(num_groups)]
    return Assembled(
        indices=np.array(indices, dtype=np.int64),
        starts=np.array(starts, dtype=np.int64),
        num_groups=num_groups,
        group_sizes=sizes[:, 0],
        group_lengths=sizes[:, 1],
        id_bytes=np.diff(_ends(samples.ids.sizes + 1)[first_samples]),
        rows=samples.rows,
        lengths=samples.lengths,
        numeric=samples.numeric,
        categorical=samples.categorical,
        labels=samples.labels,
        weights=samples.weights,
        tokens=samples.padded_tokens(sizes),
        ids=samples.separated_ids(),
    )


def _ends(sizes: Integers) -> Integers:
    """Starts of parts that follow one another, and the end of the last one."""
    ends = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends
