"""batch(step): what one rank gets of a step, as a pure function of the step.

Invariant: nothing here has a position. Batches are read ahead in a thread, and what was read ahead is not state: after
a kill it is simply read again.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch

from storage.datasets import DatasetManifest
from storage.objects.store import Store
from training.batches.ahead import AssemblingAhead
from training.batches.blocks import Block, Blocks, open_blocks
from training.batches.tensors import Leaf, to_leaves
from training.data.lookahead import look_ahead
from training.specification import SegmentSpec
from training.world import World


@dataclass(frozen=True)
class Batch:
    """What one rank gets of a step's samples."""

    leaves: list[Leaf]
    num_tokens: int  # of all samples of the step, whichever rank has them; without padding


class BatchSource:
    """Gives a rank its leaves of each step, in page-locked memory if `pin`.

    A process that assembles blocks `ahead` is told of each block that is begun, and has the next one ready by then.
    """

    def __init__(self, blocks: Blocks, pin: bool, ahead: AssemblingAhead | None = None) -> None:
        self._blocks = blocks
        self._pin = pin
        self._ahead = ahead
        self._block: Block | None = None

    def batch(self, step: int) -> Batch:
        """This rank's leaves of the batch at `step`: samples [step * G, (step + 1) * G) of the run.

        Further on in the order by what rollbacks have left out until then.
        """
        if self._block is None or step not in self._block:
            self._block = self._blocks.get(step)
            if self._ahead is not None:
                self._ahead.assemble(self._block.end_step)
        first, end = self._block.share(step, self._blocks.world.local_rank)
        leaves = to_leaves(self._block.assembled, first, end, self._blocks.is_flat)
        return Batch([leaf.pinned() if self._pin else leaf for leaf in leaves], self._block.num_tokens(step))

    def close(self) -> None:
        """End the process that assembles ahead."""
        if self._ahead is not None:
            self._ahead.close()

    def read_ahead(self, first_step: int, end_step: int, depth: int) -> Iterator[Batch]:
        """The batches of steps [first_step, end_step), with about `depth` steps read ahead in one thread."""
        # A new thread is on GPU 0, where page-locking would take memory for a context that this rank does not need.
        on_same_gpu = partial(torch.cuda.set_device, torch.cuda.current_device()) if self._pin else None
        pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead", initializer=on_same_gpu)
        # Several at once: to hand something over from thread to thread takes as long as to take a batch from a block.
        together = max(1, depth // 2)
        starts = range(first_step, end_step, together)
        stretches = (range(start, min(start + together, end_step)) for start in starts)
        try:
            for batches in look_ahead(pool, self._batches, stretches, depth // together):
                yield from batches
        finally:
            pool.shutdown(wait=False)

    def _batches(self, steps: range) -> list[Batch]:
        return [self.batch(step) for step in steps]


def open_source(
    spec: SegmentSpec, world: World, store: Store, dataset: DatasetManifest, pin: bool, ahead: AssemblingAhead | None
) -> BatchSource:
    """The batches of a segment. The first block is assembled `ahead` too, while this rank still prepares itself."""
    if ahead is not None:
        ahead.begin(spec, world)
        ahead.assemble(spec.resume.step if spec.resume else 0)
    return BatchSource(open_blocks(spec, world, store, dataset), pin, ahead)
