"""batch(step): what one rank gets of a step, as a pure function of the step.

Invariant: nothing here has a position. What was taken before it is trained on is not state: after a kill it is simply
taken again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise

from storage.datasets import DatasetManifest
from storage.objects.store import Store
from training.batches.ahead import AssemblingAhead
from training.batches.blocks import Block, Blocks, open_blocks
from training.batches.microbatches import MicrobatchCut
from training.batches.tensors import Microbatch, to_microbatches
from training.data.waiting import StoreWait
from training.spec import SegmentSpec
from training.world import World


@dataclass(frozen=True)
class Batch:
    """What one rank gets of a step's samples."""

    microbatches: list[Microbatch]
    num_tokens: int  # of all samples of the step, whichever rank has them; without padding


class BatchSource:
    """Gives a rank its microbatches of each step, in page-locked memory if `pin`.

    A process that assembles blocks `ahead` is sent each block that is begun, and has the next one ready by then. So
    no thread of this rank reads ahead, which would take turns with the one that trains.
    """

    def __init__(self, blocks: Blocks, pin: bool, ahead: AssemblingAhead | None = None) -> None:
        self._blocks = blocks
        self._pin = pin
        self._ahead = ahead
        self._block: Block | None = None
        self._taken: dict[int, Batch] = {}

    def batch(self, step: int) -> Batch:
        """This rank's microbatches of the batch at `step`: samples [step * G, (step + 1) * G) of the run.

        Further on in the order by what rollbacks have left out until then.
        """
        if step not in self._taken:
            self._taken = self._take(step)
        return self._taken[step]

    def batches(self, first_step: int, end_step: int) -> Iterator[Batch]:
        """The batches of steps [first_step, end_step)."""
        return map(self.batch, range(first_step, end_step))

    def deal_anew(self, step: int) -> None:
        """The ranks are others from `step` on, and so is what this one gets."""
        self._block, self._taken = None, {}
        if self._ahead is None:
            return
        self._ahead.deal_anew(self._blocks.world)
        if not self._is_first_here:
            self._ahead.close()
        elif self._ahead.pid is not None:
            self._ahead.assemble(step)

    @property
    def _is_first_here(self) -> bool:
        return self._blocks.world.local_rank == 0

    def close(self) -> None:
        """End the process that assembles ahead."""
        if self._ahead is not None:
            self._ahead.close()

    def _take(self, step: int) -> dict[int, Batch]:
        """The batches of `step` and of those that are copied with it: what is done once for them is done seldom."""
        if self._block is None or step not in self._block:
            # Of a rank that died another one is begun at once, with a process that works ahead. Where none has come
            # when the next block is begun, whoever is the first rank now starts such a process.
            is_due = self._block is not None or (self._ahead is not None and self._ahead.pid is not None)
            self._block = self._blocks.get(step)
            if self._ahead is not None and self._is_first_here and is_due:
                self._ahead.assemble(self._block.end_step)
        steps, ends = self._block.chunk(step, self._blocks.world.local_rank)
        microbatches = to_microbatches(self._block.assembled, ends[0], ends[-1], self._blocks.is_flat, self._pin)
        own = [list(islice(microbatches, end - first)) for first, end in pairwise(ends)]
        return {
            step: Batch(microbatches, self._block.num_tokens(step))
            for step, microbatches in zip(steps, own, strict=True)
        }


def open_source(
    spec: SegmentSpec,
    world: World,
    store: Store,
    dataset: DatasetManifest,
    cut: MicrobatchCut,
    pin: bool,
    ahead: AssemblingAhead | None,
    wait: StoreWait | None = None,
) -> BatchSource:
    """The batches of a segment. The first block is assembled `ahead` too, while this rank still prepares itself.

    A rank that joins others while they train learns from them where they are. A store that does not answer is waited
    for by this rank, as `wait` allows.
    """
    if ahead is not None:
        ahead.begin(spec, world, cut)
        if world.is_member and world.local_rank == 0:
            ahead.assemble(spec.resume.step if spec.resume else 0)
    return BatchSource(open_blocks(spec, world, store, dataset, cut, wait=wait), pin, ahead)
