"""Blocks: what one rank assembles for all of its machine is what each would have assembled alone, and made once."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from storage.datasets import DatasetManifest
from storage.errors import CorruptObjectError
from storage.objects.local_store import LocalStore
from storage.runs.run_state import RollbackRecord
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.rollbacks import rollback_to
from training.batches.blocks import Blocks
from training.batches.source import BatchSource
from training.batches.tensors import Microbatch
from training.configuration import TrainConfig
from training.data.order import SampleOrder
from training.data.reading import SampleReader
from training.data.shared_arrays import KEPT_SETS
from training.model_configuration import EncoderConfig
from training.models.source import microbatch_cut
from training.world import World

ROWS = 700
NUM_RANKS = 3
BATCH_SIZE = 24
NUM_STEPS = 40  # a little more than an epoch
MODEL = EncoderConfig(width=16, layers=2, heads=2, feedforward=32)
TRAIN = TrainConfig(padding_efficiency=0.97)


@pytest.fixture
def dataset(store: LocalStore, tmp_path: Path) -> DatasetManifest:
    return publish_small_dataset(store, tmp_path / "work", rows=ROWS)


class Machine:
    """The ranks of one machine, or of one of several, over a folder that they share."""

    def __init__(self, store: LocalStore, dataset: DatasetManifest, folder: Path) -> None:
        self.store = store
        self.dataset = dataset
        self.folder = folder

    def source(
        self,
        world: World,
        num_microbatches: int = 5,
        train: TrainConfig = TRAIN,
        rollbacks: Sequence[RollbackRecord] = (),
    ) -> BatchSource:
        reader = SampleReader(self.store, self.dataset, "train", self.folder)
        order = SampleOrder(reader.num_rows, reader.group_rows, seed=4)
        cut = microbatch_cut(MODEL, train)
        return BatchSource(
            Blocks(reader, order, cut, BATCH_SIZE, num_microbatches, world, rollbacks=rollbacks), pin=False
        )

    def ranks(self, rollbacks: Sequence[RollbackRecord] = ()) -> list[BatchSource]:
        worlds = [World(rank, NUM_RANKS, rank, NUM_RANKS) for rank in range(NUM_RANKS)]
        return [self.source(world, rollbacks=rollbacks) for world in worlds]


@pytest.fixture
def machine(store: LocalStore, dataset: DatasetManifest, tmp_path: Path) -> Machine:
    return Machine(store, dataset, tmp_path / "samples")


@pytest.fixture
def alone(store: LocalStore, dataset: DatasetManifest, tmp_path: Path) -> Machine:
    """Another machine."""
    return Machine(store, dataset, tmp_path / "alone")


def assert_same(found: Microbatch, expected: Microbatch) -> None:
    assert (found.index, found.ids, found.groups) == (expected.index, expected.ids, expected.groups)
    assert found.rows.tolist() == expected.rows.tolist()
    for name in ("tokens", "lengths", "numeric", "categorical", "labels"):
        mine, theirs = getattr(found, name), getattr(expected, name)
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)


def test_each_rank_of_a_machine_gets_from_blocks_what_it_would_have_got_on_a_machine_of_its_own(
    machine: Machine, alone: Machine, made: list[list[int]]
) -> None:
    own_machines = [alone.source(World(rank, NUM_RANKS, 0, 1)) for rank in range(NUM_RANKS)]
    expected = [[source.batch(step) for step in range(NUM_STEPS)] for source in own_machines]
    made.clear()
    ranks = machine.ranks()
    for step in range(NUM_STEPS):
        for source, batches_of_rank in zip(ranks, expected, strict=True):
            found = source.batch(step)
            assert found.num_tokens == batches_of_rank[step].num_tokens
            for mine, theirs in zip(found.microbatches, batches_of_rank[step].microbatches, strict=True):
                assert_same(mine, theirs)
    positions = [position for block in made for position in block]
    assert positions == [step * BATCH_SIZE for step in range(len(positions))]  # each step once for all ranks
    assert len(made) < NUM_STEPS / 4


def test_a_block_ends_where_another_window_would_have_to_be_decoded_for_it(
    machine: Machine, dataset: DatasetManifest, made: list[list[int]]
) -> None:
    list(machine.ranks()[0].batches(0, NUM_STEPS))
    order = SampleOrder(ROWS, dataset.row_group_rows, seed=4)
    last_windows = [[list(order.row_ranges(start, BATCH_SIZE))[-1].window for start in block] for block in made]
    assert all(len(set(windows)) == 1 for windows in last_windows)
    assert all(before[-1] != after[0] for before, after in pairwise(last_windows))
    assert max(map(len, made)) > 4


def test_a_block_has_a_limited_number_of_steps(
    machine: Machine, made: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.batches.blocks.BLOCK_STEPS", 3)
    list(machine.ranks()[1].batches(0, 9))
    assert max(map(len, made)) == 3


def test_what_rollbacks_left_out_is_left_out_of_blocks(
    machine: Machine, alone: Machine, dataset: DatasetManifest
) -> None:
    rollbacks = [rollback_to(4, 9, BATCH_SIZE)]
    source = alone.source(World(0, 1, 0, 1), rollbacks=rollbacks)
    ranks, before = machine.ranks(rollbacks), machine.ranks()
    for step in range(NUM_STEPS):
        rows = sorted(
            row for rank in ranks for microbatch in rank.batch(step).microbatches for row in microbatch.rows.tolist()
        )
        assert rows == sorted(row for microbatch in source.batch(step).microbatches for row in microbatch.rows.tolist())
        # Blocks of before the rollback are in the same folder.
        earlier = sorted(
            row for rank in before for microbatch in rank.batch(step).microbatches for row in microbatch.rows.tolist()
        )
        assert (rows == earlier) == (step < 4)


def test_another_configuration_in_the_same_folder_has_blocks_of_its_own(machine: Machine, alone: Machine) -> None:
    one_group = TrainConfig(padding_efficiency=0)
    for num_microbatches, train in ((5, TRAIN), (4, TRAIN), (5, one_group)):
        world, own = World(1, NUM_RANKS, 1, NUM_RANKS), World(1, NUM_RANKS, 0, 1)
        found = machine.source(world, num_microbatches, train).batch(0)
        expected = alone.source(own, num_microbatches, train).batch(0)
        for mine, theirs in zip(found.microbatches, expected.microbatches, strict=True):
            assert_same(mine, theirs)
    two_ranks = machine.source(World(1, 2, 1, 2)).batch(0)
    assert {microbatch.index for microbatch in two_ranks.microbatches} != {
        microbatch.index for microbatch in found.microbatches
    }


def test_a_rank_on_a_machine_of_its_own_that_gets_no_microbatch_of_a_batch_has_an_empty_one(machine: Machine) -> None:
    """More ranks than microbatches."""
    shares = [machine.source(World(rank, 4, rank % 2, 2), num_microbatches=3).batch(0) for rank in range(4)]
    assert sorted(len(batch.microbatches) for batch in shares) == [0, 1, 1, 1]
    lonely = [machine.source(World(rank, 4, 0, 1), num_microbatches=3).batch(0) for rank in range(4)]
    assert [len(batch.microbatches) for batch in lonely] == [len(batch.microbatches) for batch in shares]


def test_blocks_that_are_done_with_are_removed_and_a_slower_rank_assembles_them_again(
    machine: Machine, made: list[list[int]]
) -> None:
    slow, fast, _ = machine.ranks()
    before = slow.batch(0)
    list(fast.batches(0, NUM_STEPS))
    num_made = len(made)
    assert len(list(machine.folder.glob("train-block-*"))) == KEPT_SETS < num_made
    again = slow.batch(1)
    assert again.microbatches and len(made) == num_made  # what is mapped stays
    list(slow.batches(0, NUM_STEPS))
    assert num_made < len(made) < 2 * num_made
    assert_same(slow.batch(0).microbatches[0], before.microbatches[0])


def test_a_microbatch_may_be_written_to_and_outlives_its_block(machine: Machine) -> None:
    microbatch = machine.ranks()[0].batch(0).microbatches[0]
    for path in machine.folder.iterdir():
        path.unlink()
    for name in ("tokens", "lengths", "numeric", "categorical", "labels"):
        getattr(microbatch, name).zero_()
    assert not np.any(microbatch.tokens.numpy())


def test_a_damaged_row_group_is_told_by_every_rank(machine: Machine, store: LocalStore) -> None:
    path = store.fetch(f"datasets/{machine.dataset.digest}/{machine.dataset.splits['train'].shards[0].name}")
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 4
    path.write_bytes(data)
    for source in machine.ranks():
        with pytest.raises(CorruptObjectError):
            list(source.batches(0, NUM_STEPS))


def test_a_rank_that_trains_on_among_fewer_gets_what_one_gets_that_was_always_among_those(
    store: LocalStore, dataset: DatasetManifest, tmp_path: Path
) -> None:
    machine = Machine(store, dataset, tmp_path / "machine")
    world = World(2, 3, 2, 3)
    source = machine.source(world)
    source.batch(0)
    world.enter([0, 2], None)
    source.deal_anew(1)
    among_two = machine.source(World(1, 2, 1, 2))
    for step in (1, 2):
        found, expected = source.batch(step).microbatches, among_two.batch(step).microbatches
        assert [(m.index, m.rows.tolist()) for m in found] == [(m.index, m.rows.tolist()) for m in expected]
