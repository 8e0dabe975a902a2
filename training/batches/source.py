"""batch(step) and leaves(batch): what the model sees at a step, as a pure function of the step.

Where a machine has several ranks, one of them assembles what all of them get of the next steps, a block, and all map
it. Invariant: nothing here has a position. Batches are read ahead in a thread, and what was read ahead is not state:
after a kill it is simply read again.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from storage.objects.digests import canonical_json, sha256_of_bytes
from storage.runs.positions import first_position
from storage.runs.run_state import RollbackRecord
from training.batches.assembled import ASSEMBLED_FIELDS, Assembled, Leaf, assemble
from training.batches.leaves import LeafCut
from training.data.lookahead import look_ahead
from training.data.order import Order, Window
from training.data.reading import SampleReader
from training.data.shared_arrays import Arrays, Pieces, SharedArrays
from training.world import World

# What is done once for a block is little beside these, and to assemble them takes less than a step or two.
BLOCK_STEPS = 32
BLOCK_FIELDS = ("shares", "num_tokens", *ASSEMBLED_FIELDS)


@dataclass(frozen=True)
class Batch:
    """What one rank gets of a step's samples."""

    leaves: list[Leaf]
    num_tokens: int  # of all samples of the step, whichever rank has them; without padding


class Block:
    """What the ranks of a machine get of some steps that follow each other: step after step, rank after rank."""

    def __init__(self, first_step: int, num_ranks: int, arrays: Arrays) -> None:
        self._first_step = first_step
        self._num_ranks = num_ranks
        self._ends = [0, *accumulate(arrays["shares"].tolist())]
        self._num_tokens: list[int] = arrays["num_tokens"].tolist()
        self._assembled = Assembled(**{name: arrays[name] for name in ASSEMBLED_FIELDS})

    def __contains__(self, step: int) -> bool:
        return 0 <= step - self._first_step < len(self._num_tokens)

    def batch(self, step: int, rank: int, is_flat: bool) -> Batch:
        """The share of the machine's `rank`-th rank."""
        number = step - self._first_step
        share = number * self._num_ranks + rank
        leaves = self._assembled.leaves(self._ends[share], self._ends[share + 1], is_flat)
        return Batch(list(leaves), self._num_tokens[number])


class BatchSource:
    """Gives each rank its leaves of each step."""

    def __init__(
        self,
        reader: SampleReader,
        order: Order,
        cut: LeafCut,
        batch_size: int,
        num_leaves: int,
        world: World,
        pin: bool,
        rollbacks: Sequence[RollbackRecord] = (),
    ) -> None:
        self.batch_size = batch_size
        self._rollbacks = rollbacks
        self._reader = reader
        self._order = order
        self._cut = cut
        self._num_leaves = num_leaves
        self._world = world
        self._pin = pin
        self._shared = SharedArrays(reader.folder, f"{reader.split}-block")
        self._block: Block | None = None

    def batch(self, step: int) -> Batch:
        """This rank's leaves of the batch at `step`: samples [step * G, (step + 1) * G) of the run.

        Further on in the order by what rollbacks have left out until then.
        """
        if self._block is None or step not in self._block:
            self._block = self._open_block(step)
        batch = self._block.batch(step, self._world.local_rank, self._cut.padding_efficiency > 0)
        return Batch([leaf.pinned() for leaf in batch.leaves], batch.num_tokens) if self._pin else batch

    def read_ahead(self, first_step: int, end_step: int, depth: int) -> Iterator[Batch]:
        """The batches of steps [first_step, end_step), with `depth` steps or one more read ahead in one thread."""
        # A new thread is on GPU 0, where page-locking would take memory for a context that this rank does not need.
        on_same_gpu = partial(torch.cuda.set_device, torch.cuda.current_device()) if self._pin else None
        pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead", initializer=on_same_gpu)
        # Two at once: to hand something over from thread to thread takes as long as to take a batch from a block.
        together = min(2, depth)
        starts = range(first_step, end_step, together)
        stretches = (range(start, min(start + together, end_step)) for start in starts)
        try:
            for batches in look_ahead(pool, self._batches, stretches, depth // together):
                yield from batches
        finally:
            pool.shutdown(wait=False)

    def _batches(self, steps: range) -> list[Batch]:
        return [self.batch(step) for step in steps]

    def _open_block(self, step: int) -> Block:
        """The block that begins at `step`. A rank that is alone on its machine has no one to assemble more for."""
        if self._world.local_size == 1:
            arrays = {name: pieces[0] for name, pieces in self._assemble([self._position(step)]).items()}
        else:
            positions = self._positions(step)
            arrays = self._shared.get(self._key(positions), lambda: self._assemble(positions))
        return Block(step, self._world.local_size, arrays)

    def _position(self, step: int) -> int:
        return first_position(step, self.batch_size, self._rollbacks)

    def _positions(self, step: int) -> list[int]:
        """Of the steps of the block that begins at `step`: the first, and others that need no further window."""
        positions = [self._position(other) for other in range(step, step + BLOCK_STEPS)]
        last_window = self._last_window(positions[0])
        return [position for position in positions if self._last_window(position) == last_window]

    def _last_window(self, position: int) -> Window:
        *_, last = self._order.stretches(position, self.batch_size)
        return last.window

    def _key(self, positions: list[int]) -> str:
        """Ranks that have these positions, and this configuration, have the same block; other ones have another."""
        world, cut = self._world, self._cut
        what = [positions, self.batch_size, self._num_leaves, cut.dense_length, cut.padding_efficiency]
        digest = sha256_of_bytes(canonical_json([*what, world.size, list(world.ranks_here)]))
        return f"{self._order.name}-{positions[0]}-{digest[:16]}"

    def _assemble(self, positions: Sequence[int]) -> Pieces:
        """What the ranks of this machine get of the steps at these positions: each array in one piece a step."""
        pieces: dict[str, list[NDArray[Any]]] = {name: [] for name in BLOCK_FIELDS}
        for position in positions:
            parts = self._reader.read_parts(self._order, position, self.batch_size)
            lengths = np.concatenate([part.lengths for part in parts])
            world = self._world
            assembled, shares = assemble(parts, lengths, self._cut, self._num_leaves, world.size, world.ranks_here)
            pieces["shares"].append(np.array(shares))
            pieces["num_tokens"].append(lengths.sum(keepdims=True))
            for name in ASSEMBLED_FIELDS:
                pieces[name].append(getattr(assembled, name))
        return pieces
