"""groups(leaves): how the samples of a leaf stand together, so that little is padded; pure functions on integers.

A leaf's samples are sorted by length. A group is some that follow each other, padded to the longest of them and to no
multiple. Invariant: the groups depend on the lengths in the batch and on the run's configuration alone, so shapes are
the same on any number of ranks.
"""

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Lengths = NDArray[np.int64]


class Group(NamedTuple):
    """Samples of a leaf that are padded to one length."""

    num_samples: int
    length: int  # in tokens, at least 1

    @property
    def num_tokens(self) -> int:
        """With padding."""
        return self.num_samples * self.length


class _Span(NamedTuple):
    """Samples [start, end) of a leaf, and how many tokens less they have when they are parted at `middle`.

    In a heap the span that saves most comes first; of equal ones the first leaf's.
    """

    minus_saved: int
    leaf: int
    start: int
    middle: int
    end: int


def group_samples(leaves: Sequence[Lengths], efficiency: float) -> list[tuple[Group, ...]]:
    """The groups of each leaf of a batch, given its samples' lengths in rising order.

    At least the share `efficiency` of the tokens of the whole batch, padding included, are real ones. That takes about
    as few groups as it can: the group that saves most tokens is parted first, at the place where it saves most.
    """
    padded = [np.maximum(1, lengths) for lengths in leaves]  # what has no token is one of padding
    most_tokens = sum(int(lengths.sum()) for lengths in padded) / efficiency
    num_tokens = sum(len(lengths) * int(lengths[-1]) for lengths in padded)
    ends = [[len(lengths)] for lengths in padded]
    spans = [span for leaf, lengths in enumerate(padded) for span in _parted(lengths, leaf, 0, len(lengths))]
    heapq.heapify(spans)
    while num_tokens > most_tokens:
        span = heapq.heappop(spans)
        num_tokens += span.minus_saved
        ends[span.leaf].append(span.middle)
        for start, end in ((span.start, span.middle), (span.middle, span.end)):
            for part in _parted(padded[span.leaf], span.leaf, start, end):
                heapq.heappush(spans, part)
    return [_groups(lengths, sorted(of_leaf)) for lengths, of_leaf in zip(padded, ends, strict=True)]


def _parted(lengths: Lengths, leaf: int, start: int, end: int) -> Iterator[_Span]:
    """How these samples are best parted; nothing if they have one length."""
    span = lengths[start:end]
    if span[0] < span[-1]:
        saved = np.arange(1, len(span)) * (span[-1] - span[:-1])
        place = int(saved.argmax())
        yield _Span(-int(saved[place]), leaf, start, start + place + 1, end)


def _groups(lengths: Lengths, ends: Sequence[int]) -> tuple[Group, ...]:
    return tuple(Group(end - start, int(lengths[end - 1])) for start, end in zip([0, *ends], ends, strict=False))
