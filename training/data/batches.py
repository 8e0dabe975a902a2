"""batch(step) and leaves(batch): what the model sees at a step, as a pure function of the step.

Invariant: nothing here has a position. Batches are read ahead in a thread, and what was read ahead is not state: after
a kill it is simply read again.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from storage.runs.positions import first_position
from storage.runs.run_state import RollbackRecord
from training.data.groups import Group
from training.data.leaves import LeafCut
from training.data.lookahead import look_ahead
from training.data.order import Order
from training.data.reading import SampleReader
from training.data.samples import Samples, take
from training.rank_shares import deal
from training.world import World


@dataclass(frozen=True)
class Leaf:
    """A part of a batch that goes through the model in one pass: B samples, group after group.

    A leaf that is flat has N tokens, padding included; one that is not is a single group of length T.
    """

    index: int
    rows: NDArray[np.int64]  # [B] indices in the split
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
class Batch:
    """What one rank gets of a step's samples."""

    leaves: list[Leaf]
    num_tokens: int  # of all samples of the step, whichever rank has them; without padding


def make_leaves(samples: Samples, groups: Mapping[int, tuple[Group, ...]], is_flat: bool) -> Iterator[Leaf]:
    """Leaves of these samples, one after the other, given the groups of each by its index."""
    tokens = samples.padded_tokens([group for of_leaf in groups.values() for group in of_leaf])
    start = first_token = 0
    for index, of_leaf in groups.items():
        end = start + sum([num_samples for num_samples, _ in of_leaf])
        end_token = first_token + sum([num_samples * length for num_samples, length in of_leaf])
        own_tokens = tokens[first_token:end_token]
        # Arrays are parted, not tensors: compiled code would notice that a tensor begins within another one.
        yield Leaf(
            index=index,
            rows=samples.rows[start:end],
            ids=samples.joined_ids(slice(start, end)),
            groups=of_leaf,
            tokens=torch.from_numpy(own_tokens if is_flat else own_tokens.reshape(end - start, -1)),
            lengths=torch.from_numpy(samples.lengths[start:end]),
            numeric=torch.from_numpy(samples.numeric[start:end]),
            categorical=torch.from_numpy(samples.categorical[start:end]),
            labels=torch.from_numpy(samples.labels[start:end]),
        )
        start, first_token = end, end_token


def own_leaves(
    parts: Sequence[Samples], lengths: NDArray[np.int64], cut: LeafCut, num_leaves: int, world: World
) -> Iterator[Leaf]:
    """This rank's leaves of a batch in parts. Of the samples of other leaves nothing is read but their `lengths`."""
    leaves = cut.cut(lengths, num_leaves)
    groups = cut.groups([lengths[leaf] for leaf in leaves])
    own = deal([cut.cost(of_leaf) for of_leaf in groups], world.size)[world.rank]
    if own:
        samples = take(parts, np.concatenate([leaves[index] for index in own]))
        yield from make_leaves(samples, {index: groups[index] for index in own}, cut.padding_efficiency > 0)


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

    def batch(self, step: int) -> Batch:
        """This rank's leaves of the batch at `step`: samples [step * G, (step + 1) * G) of the run.

        Further on in the order by what rollbacks have left out until then.
        """
        position = first_position(step, self.batch_size, self._rollbacks)
        parts = self._reader.read_parts(self._order, position, self.batch_size)
        lengths = np.concatenate([part.lengths for part in parts])
        leaves = own_leaves(parts, lengths, self._cut, self._num_leaves, self._world)
        return Batch([leaf.pinned() if self._pin else leaf for leaf in leaves], int(lengths.sum()))

    def read_ahead(self, first_step: int, end_step: int, depth: int) -> Iterator[Batch]:
        """The batches of steps [first_step, end_step), at most `depth` steps read ahead in one thread."""
        # A new thread is on GPU 0, where page-locking would take memory for a context that this rank does not need.
        on_same_gpu = partial(torch.cuda.set_device, torch.cuda.current_device()) if self._pin else None
        pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead", initializer=on_same_gpu)
        try:
            yield from look_ahead(pool, self.batch, range(first_step, end_step), depth)
        finally:
            pool.shutdown(wait=False)
