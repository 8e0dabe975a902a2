"""At which microbatch each rank of a node is, in memory that its agent has made and all of them share.

Invariant: a rank stores some words there and waits for nothing; what it stored last is there when a signal has ended
it. Nothing here goes to a disk.
"""

import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

Words = NDArray[np.int64]

# Of one rank: its life and 1, so that 0 is nothing; step; microbatch; when it began; how many rows. Then the rows.
NUM_HEAD = 5
# What the memory begins with. Behind it, for each microbatch, the last step, counted from 1, in which it was computed.
SHAPE = ("ranks", "microbatches", "batch size")
WORD_BYTES = 8


class MicrobatchPlace(BaseModel):
    """A microbatch that a rank computes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int = Field(description="Steps made before.")
    index: int = Field(description="Of the microbatch, in the step.")
    rows: tuple[int, ...] = Field(description="Its samples, by their index in the training split.")
    began_at: float = Field(description="Seconds of the machine's monotonic clock.")


class Place:
    """Where one rank says at which microbatch it is. Where it has no memory for that, nothing is said."""

    def __init__(self, own: Words | None = None, ended: Words | None = None, life: int = 0) -> None:
        """`own` int64 [NUM_HEAD + batch size] is this rank's, `ended` int64 [microbatches] that of all of them."""
        self._own, self._ended, self._life = own, ended, life

    @contextmanager
    def computing(self, step: int, index: int, rows: Words) -> Iterator[None]:
        """Context of forward and backward of a microbatch of the step, counted from 0."""
        if self._own is None or self._ended is None:
            yield
            return
        self._own[1:NUM_HEAD] = step, index, time.monotonic_ns(), len(rows)
        self._own[NUM_HEAD : NUM_HEAD + len(rows)] = rows
        self._own[0] = self._life + 1
        try:
            yield
            self._ended[index] = step + 1
        finally:
            self._own[0] = 0


class Places:
    """The places of a node's ranks, in the memory that has this descriptor.

    Processes that the agent begins have it under the same number.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        words = np.frombuffer(mmap.mmap(descriptor, os.fstat(descriptor).st_size), dtype=np.int64)
        num_ranks, num_microbatches, batch_size = words[: len(SHAPE)].tolist()
        self._ended, ranks = np.split(words[len(SHAPE) :], [num_microbatches])
        self._ranks = ranks.reshape(num_ranks, NUM_HEAD + batch_size)

    @classmethod
    def make(cls, num_ranks: int, num_microbatches: int, batch_size: int) -> "Places":
        """Places for so many ranks, at none yet."""
        num_words = len(SHAPE) + num_microbatches + num_ranks * (NUM_HEAD + batch_size)
        descriptor = os.memfd_create("holdfast-places", 0)
        os.ftruncate(descriptor, WORD_BYTES * num_words)
        os.pwrite(descriptor, np.array([num_ranks, num_microbatches, batch_size], dtype=np.int64).tobytes(), 0)
        return cls(descriptor)

    def of(self, local_rank: int, life: int) -> Place:
        """The place of a rank of this node, and of its process with this life."""
        return Place(self._ranks[local_rank], self._ended, life)

    def find(self, local_rank: int, life: int) -> MicrobatchPlace | None:
        """Where this process of the rank was when it ended; None if it was at no microbatch."""
        said, step, index, began_ns, num_rows = self._ranks[local_rank, :NUM_HEAD].tolist()
        if said != life + 1:
            return None
        rows = self._ranks[local_rank, NUM_HEAD : NUM_HEAD + num_rows].tolist()
        return MicrobatchPlace(step=step, index=index, rows=tuple(rows), began_at=began_ns / 1e9)

    def has_been_computed(self, place: MicrobatchPlace) -> bool:
        """Whether a rank has computed this microbatch to its end."""
        return int(self._ended[place.index]) == place.step + 1

    def close(self) -> None:
        """Begin no rank with it any more."""
        os.close(self.descriptor)
