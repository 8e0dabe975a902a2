"""Blocks: what the ranks of a machine get of some steps that follow each other, assembled once for all of them.

Whichever process needs a block first assembles it, into a file that all map. Invariant: what is in a block is a
function of its first step, the data set and the run's configuration, not of the process that assembles it. Torch is not
imported: the process that assembles blocks ahead does without.
"""

from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.datasets import DatasetManifest
from storage.objects.digests import canonical_json, sha256_of_bytes
from storage.objects.store import Store
from storage.runs.rollbacks.positions import first_position, standing
from storage.runs.run_state import RollbackRecord
from training.batches.assembled import ASSEMBLED_FIELDS, Assembled, assemble_shares, share_batch
from training.batches.microbatches import MicrobatchCut
from training.data.order import Order, SampleOrder, Window
from training.data.reading import SampleReader
from training.data.shared_arrays import ArrayChunks, Arrays, SharedArrays
from training.data.waiting import StoreWait
from training.spec import SegmentSpec
from training.world import World

# What is done once for a block is little beside these, and to assemble them takes less than a step or two.
BLOCK_STEPS = 32
# Assembled at once, and taken at once by a rank, since each call of NumPy and of Arrow takes its time. More would no
# longer be in the processor's cache when they are written.
CHUNK_STEPS = 8
BLOCK_FIELDS = ("shares", "num_tokens", *ASSEMBLED_FIELDS)


class Block:
    """What the ranks of a machine get of the steps [first_step, end_step).

    Chunk of `CHUNK_STEPS` steps after chunk; within one, rank after rank; and of a rank, step after step.
    """

    def __init__(self, first_step: int, num_ranks: int, arrays: Arrays) -> None:
        self._first_step = first_step
        self._num_ranks = num_ranks
        self._ends = [0, *accumulate(arrays["shares"].tolist())]
        self._num_tokens: list[int] = arrays["num_tokens"].tolist()
        self.end_step = first_step + len(self._num_tokens)
        self.assembled = Assembled(**{name: arrays[name] for name in ASSEMBLED_FIELDS})

    def __contains__(self, step: int) -> bool:
        return self._first_step <= step < self.end_step

    def chunk(self, step: int, rank: int) -> tuple[range, list[int]]:
        """The steps of the chunk that has `step`.

        With the first microbatch that the machine's `rank`-th rank gets of each, and the one after its last.
        """
        start = (step - self._first_step) // CHUNK_STEPS * CHUNK_STEPS
        first_step = self._first_step + start
        steps = range(first_step, min(first_step + CHUNK_STEPS, self.end_step))
        number = start * self._num_ranks + rank * len(steps)
        return steps, self._ends[number : number + len(steps) + 1]

    def num_tokens(self, step: int) -> int:
        """The tokens of all samples of the step, whichever rank has them; without padding."""
        return self._num_tokens[step - self._first_step]


class Blocks:
    """The blocks of a run, for the ranks of this machine. A block may begin at any step."""

    def __init__(
        self,
        reader: SampleReader,
        order: Order,
        cut: MicrobatchCut,
        batch_size: int,
        num_microbatches: int,
        world: World,
        rollbacks: Sequence[RollbackRecord] = (),
    ) -> None:
        self.world = world
        self._batch_size = batch_size
        self.is_flat = cut.padding_efficiency > 0
        self._rollbacks = rollbacks
        self._reader = reader
        self._order = order
        self._cut = cut
        self._num_microbatches = num_microbatches
        self._shared = SharedArrays(
            reader.folder, f"{reader.split}-block", waiting=world.rank_status.waiting_for_samples
        )
        self._skipped = [(record.resume_step, record.end_position) for record in standing(rollbacks)]

    @property
    def _name(self) -> str:
        """Ranks that have the same of these have the same blocks; other ones have others."""
        cut, world = self._cut, self.world
        shape = [self._batch_size, self._num_microbatches, cut.dense_length, cut.padding_efficiency, world.size]
        dealt = [self._order.name, *shape, CHUNK_STEPS, list(world.ranks_here), self._skipped]
        return sha256_of_bytes(canonical_json(dealt))[:16]

    def get(self, step: int) -> Block:
        """The block that begins at `step`; it is assembled if it is not there."""
        arrays = self._shared.get(f"{self._name}-{step}", lambda: self._assemble(self._positions(step)))
        return Block(step, self.world.local_size, arrays)

    def _position(self, step: int) -> int:
        return first_position(step, self._batch_size, self._rollbacks)

    def _positions(self, step: int) -> range:
        """The steps of the block that begins at `step`: the first, and those behind it that need no more windows.

        And that go on where the step before ends, which one after a rollback may not.
        """
        first = self._position(step)
        positions = range(first, first + BLOCK_STEPS * self._batch_size, self._batch_size)
        last_window = self._last_window(first)

        def goes_on(number: int) -> bool:
            position = positions[number]
            return self._position(step + number) == position and self._last_window(position) == last_window

        return positions[: sum(1 for _ in takewhile(goes_on, range(BLOCK_STEPS)))]

    def _last_window(self, position: int) -> Window:
        *_, last = self._order.row_ranges(position, self._batch_size)
        return last.window

    def _assemble(self, positions: range) -> ArrayChunks:
        """What the ranks of this machine get of the steps at these positions: each array in chunks of a few steps."""
        chunks: dict[str, list[NDArray[Any]]] = {name: [] for name in BLOCK_FIELDS}
        for first in range(0, len(positions), CHUNK_STEPS):
            for name, chunk in self._assemble_chunk(positions[first : first + CHUNK_STEPS]).items():
                chunks[name].append(chunk)
        return chunks

    def _assemble_chunk(self, positions: range) -> Arrays:
        samples = self._reader.read(self._order, positions.start, len(positions) * self._batch_size)
        lengths = samples.lengths.reshape(len(positions), self._batch_size)
        dealt = [share_batch(of_batch, self._cut, self._num_microbatches, self.world.size) for of_batch in lengths]
        starts = [position - positions.start for position in positions]
        shares = [of_batch[rank] for rank in self.world.ranks_here for of_batch in dealt]
        assembled = assemble_shares(samples, shares, starts * self.world.local_size)
        arrays = {name: getattr(assembled, name) for name in ASSEMBLED_FIELDS}
        arrays["shares"] = np.array([len(share.indices) for share in shares])
        arrays["num_tokens"] = lengths.sum(axis=1)
        return arrays


def open_blocks(
    spec: SegmentSpec,
    world: World,
    store: Store,
    dataset: DatasetManifest,
    cut: MicrobatchCut,
    looks_ahead: bool = False,
    assembles_for_all: bool = False,
    wait: StoreWait | None = None,
) -> Blocks:
    """The blocks of a segment's run; how windows of samples are read for them: `SampleReader`."""
    config = spec.train
    reader = SampleReader(
        store,
        dataset,
        "train",
        spec.samples_folder,
        looks_ahead,
        reads_for_all=assembles_for_all,
        wait=wait,
        waiting=world.rank_status.waiting_for_samples,
    )
    order = SampleOrder(reader.num_rows, reader.group_rows, config.seed)
    return Blocks(reader, order, cut, config.batch_size, config.microbatches, world, spec.rollbacks)
