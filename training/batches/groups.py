"""groups(microbatches): how samples of a microbatch stand together, so that little is padded; pure functions.

A microbatch's samples are sorted by length. A group is some that follow each other, padded to the longest of them and
to no multiple. Invariant: the groups depend on the lengths in the batch and on the run's configuration alone, so shapes
are the same on any number of ranks.
"""

import heapq
from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Lengths = NDArray[np.int64]


class Group(NamedTuple):
    """Samples of a microbatch that are padded to one length."""

    num_samples: int
    length: int  # in tokens, at least 1

    @property
    def num_tokens(self) -> int:
        """Tokens, padding included."""
        return self.num_samples * self.length


# Samples [start, end) of a batch: how many tokens less they have, below 0, when they are parted at `middle`; start,
# middle, end. In a heap the span that saves most comes first; of equal ones the first in the batch.
_Span = tuple[int, int, int, int]
# So many integers a list is looked through in less time than NumPy takes to begin.
FEW_SAMPLES = 64


def group_samples(microbatches: Sequence[Lengths], efficiency: float) -> list[tuple[Group, ...]]:
    """The groups of each microbatch of a batch, given its samples' lengths in rising order.

    At least the share `efficiency` of the tokens of the whole batch, padding included, are real ones. That takes about
    as few groups as it can: the group that saves most tokens is parted first, at the position where it saves most.
    """
    lengths = np.maximum(1, np.concatenate(microbatches))  # what has no token is one of padding
    microbatch_ends = list(accumulate(len(microbatch) for microbatch in microbatches))
    ends = _part(lengths, microbatch_ends, int(lengths.sum()) / efficiency)
    longest: list[int] = lengths[np.array(ends) - 1].tolist()
    groups = [Group(end - start, length) for (start, end), length in zip(pairwise([0, *ends]), longest, strict=True)]
    group_ends = [bisect(ends, end) for end in microbatch_ends]
    return [tuple(groups[first:last]) for first, last in pairwise([0, *group_ends])]


def _part(lengths: Lengths, microbatch_ends: list[int], most_tokens: float) -> list[int]:
    """The ends of the groups of all microbatches: parted until they have no more tokens than that."""
    ends, values = list(microbatch_ends), lengths.tolist()
    num_tokens = sum((end - start) * values[end - 1] for start, end in pairwise([0, *ends]))
    spans = _part_leaves(lengths, microbatch_ends)
    heapq.heapify(spans)
    while num_tokens > most_tokens:
        minus_saved, start, middle, end = heapq.heappop(spans)
        num_tokens += minus_saved
        ends.append(middle)
        for first, last in ((start, middle), (middle, end)):
            if values[first] < values[last - 1]:  # of one length, nothing is saved
                heapq.heappush(spans, _best_parting(values, first, last))
    return sorted(ends)


def _part_leaves(lengths: Lengths, ends: list[int]) -> list[_Span]:
    """How each microbatch is best parted, of all at once; without those of one length."""
    num_samples, last_indices = len(lengths), np.array(ends) - 1
    starts = np.array([0, *ends[:-1]])
    indices, sizes = np.arange(num_samples), last_indices - starts + 1
    saved = (indices - np.repeat(starts - 1, sizes)) * (np.repeat(lengths[last_indices], sizes) - lengths)
    # One number for what is saved and for the position: of positions that save as much the first has the largest.
    best = np.maximum.reduceat(saved * num_samples + (num_samples - 1 - indices), starts)
    most, middles = best // num_samples, num_samples - best % num_samples
    found = zip((-most).tolist(), starts.tolist(), middles.tolist(), ends, strict=True)
    return [span for span in found if span[0] < 0]


def _best_parting(lengths: list[int], start: int, end: int) -> _Span:
    """How these samples of more than one length are best parted; of positions that save as much, at the first."""
    longest = lengths[end - 1]
    if end - start > FEW_SAMPLES:
        all_saved = np.arange(1, end - start) * (longest - np.array(lengths[start : end - 1]))
        position = int(all_saved.argmax())
        return -int(all_saved[position]), start, start + position + 1, end
    saved = [count * (longest - length) for count, length in enumerate(lengths[start : end - 1], 1)]
    most = max(saved)
    return -most, start, start + saved.index(most) + 1, end
