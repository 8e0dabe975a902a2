"""microbatches(batch): how a batch is cut into microbatches; pure functions on integers.

Invariant: the cut depends on the lengths in the batch and on the run's configuration alone, so shapes are the same on
any number of ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

import numpy as np
from numpy.typing import NDArray

from training.batches.groups import Group, group_samples
from training.data.samples import PADDING_MULTIPLE, padded_length

# The first step of the search for a budget is this part of the mean cost of a microbatch.
FIRST_STEPS = 16


@dataclass(frozen=True)
class MicrobatchCut:
    """Cuts batches so that the costliest microbatch costs as little as possible.

    A padded token costs `dense_length` for the layers that look at it alone, and one more for each token that attention
    looks at; a model's source knows that length. How samples are padded depends on `padding_efficiency`, which
    microbatch they are in does not.
    """

    dense_length: int
    padding_efficiency: float = 0.0

    def cut(self, lengths: NDArray[np.int64], num_microbatches: int) -> list[NDArray[np.int64]]:
        """Positions in the batch of each microbatch's samples, the shortest microbatch first; each has at least one.

        Neighbours in length stand together, so little is padded; where texts are long a microbatch has few of them, so
        that microbatches take about as long as each other. At most as many microbatches as samples.
        """
        shortest_first = np.argsort(lengths, kind="stable")
        padded = -(-np.maximum(1, lengths[shortest_first]) // PADDING_MULTIPLE) * PADDING_MULTIPLE
        # All costs are multiples of this: the smaller the numbers, the fewer budgets are tried.
        unit = PADDING_MULTIPLE * gcd(PADDING_MULTIPLE, self.dense_length)
        costs: list[int] = (padded * (self.dense_length + padded) // unit)[::-1].tolist()
        ends = _cut_costs(costs, min(num_microbatches, len(costs)))
        starts = [len(costs) - end for end in reversed(ends)]
        return [shortest_first[start:end] for start, end in pairwise([*starts, len(costs)])]

    def groups(self, microbatches: Sequence[NDArray[np.int64]]) -> list[tuple[Group, ...]]:
        """How each microbatch is padded, by its samples' lengths, rising; one group where no efficiency is set."""
        if self.padding_efficiency:
            return group_samples(microbatches, self.padding_efficiency)
        return [(Group(len(lengths), padded_length(int(lengths[-1]))),) for lengths in microbatches]

    def cost(self, groups: Sequence[Group]) -> int:
        """Cost of a microbatch of these groups."""
        # Not through the names of a group's fields: each rank asks for all microbatches of a batch.
        return sum([num_samples * length * (self.dense_length + length) for num_samples, length in groups])


def _cut_costs(costs: list[int], num_microbatches: int) -> list[int]:
    """Ends of `num_microbatches` neighbourhoods of samples, given each sample's cost in falling order.

    A microbatch costs its number of samples times its first. The smallest budget that no microbatch exceeds is looked
    for from the mean upwards, in steps that double, since it is seldom far from there; then by halving.
    """
    low = high = max(costs[0], -(-sum(costs) // num_microbatches))
    step = -(-low // FIRST_STEPS)
    while not _fits(costs, high, num_microbatches):
        low, high, step = high + 1, high + step, 2 * step
    while low < high:
        middle = (low + high) // 2
        if _fits(costs, middle, num_microbatches):
            high = middle
        else:
            low = middle + 1
    return _split_further(costs, _fill(costs, low), num_microbatches)


def _fits(costs: list[int], budget: int, num_microbatches: int) -> bool:
    """Whether so many microbatches hold all samples when none costs more than the budget. This is asked often."""
    start, end = 0, len(costs)
    for _ in range(num_microbatches):
        start += budget // costs[start]
        if start >= end:
            return True
    return False


def _fill(costs: list[int], budget: int) -> list[int]:
    """Ends of microbatches that each hold as much as the budget allows."""
    ends: list[int] = []
    start = 0
    while start < len(costs):
        start = min(len(costs), start + budget // costs[start])
        ends.append(start)
    return ends


def _split_further(costs: list[int], ends: list[int], num_microbatches: int) -> list[int]:
    """Halve the costliest microbatch of more than one sample until there are enough microbatches."""
    while len(ends) < num_microbatches:
        spans = [(start, end) for start, end in zip([0, *ends], ends, strict=False) if end - start > 1]
        start, end = max(spans, key=lambda span: ((span[1] - span[0]) * costs[span[0]], -span[0]))
        ends = sorted([*ends, (start + end) // 2])
    return ends
