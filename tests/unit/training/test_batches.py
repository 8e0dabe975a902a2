"""What the model sees: every sample where the order says, on any number of ranks, with padding that changes nothing."""

import uuid
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from storage.datasets import DatasetManifest
from storage.errors import CorruptObjectError
from storage.objects.local_store import LocalStore
from storage.runs.ledger import ID_SEPARATOR
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.small_models import make_encoder
from training.batches.blocks import Blocks
from training.batches.source import BatchSource
from training.batches.tensors import Microbatch
from training.configuration import TrainConfig
from training.data.byte_strings import Bytes, ByteStrings
from training.data.order import RowOrder, SampleOrder
from training.data.reading import SampleReader
from training.data.samples import PADDING_MULTIPLE, Samples
from training.model_configuration import EncoderConfig
from training.models.source import microbatch_cut
from training.world import World

BATCH_SIZE = 24
NUM_MICROBATCHES = 5
MODEL = EncoderConfig(width=16, layers=2, heads=2, feedforward=32)
IN_GROUPS, IN_ONE_GROUP = TrainConfig(padding_efficiency=0.97), TrainConfig(padding_efficiency=0)


@pytest.fixture
def dataset(store: LocalStore, tmp_path: Path) -> DatasetManifest:
    return publish_small_dataset(store, tmp_path / "work", rows=300)


def make_reader(store: LocalStore, dataset: DatasetManifest) -> SampleReader:
    """With a folder of its own, as on a machine of its own."""
    return SampleReader(store, dataset, "train", store.root / "samples" / uuid.uuid4().hex)


def order_of(reader: SampleReader) -> SampleOrder:
    return SampleOrder(reader.num_rows, reader.group_rows, seed=4)


def ids_of(samples: Samples) -> list[str]:
    return samples.separated_ids().tobytes().decode().split(ID_SEPARATOR)[:-1]


def tokens_of(samples: Samples) -> list[list[int]]:
    """Of each sample, without padding."""
    rows = samples.padded_tokens(np.array([[len(samples), 24]])).reshape(-1, 24)
    return [row[:length] for row, length in zip(rows.tolist(), samples.lengths.tolist(), strict=True)]


def make_source(
    store: LocalStore, dataset: DatasetManifest, world: World, train: TrainConfig = IN_GROUPS
) -> BatchSource:
    reader = make_reader(store, dataset)
    order = order_of(reader)
    return BatchSource(
        Blocks(reader, order, microbatch_cut(MODEL, train), BATCH_SIZE, NUM_MICROBATCHES, world), pin=False
    )


def rows_of(microbatch: Microbatch) -> list[list[int]]:
    """The tokens of each sample, padded."""
    sizes = [group.num_tokens for group in microbatch.groups]
    parts = torch.split(microbatch.tokens.flatten(), sizes)
    return [row for part, group in zip(parts, microbatch.groups, strict=True) for row in part.view(*group).tolist()]


@pytest.mark.parametrize("train", [IN_GROUPS, IN_ONE_GROUP])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_ranks_together_see_the_same_microbatches_on_any_number_of_ranks(
    store: LocalStore, dataset: DatasetManifest, size: int, train: TrainConfig
) -> None:
    alone = make_source(store, dataset, World(0, 1, 0, 1), train)
    ranks = [make_source(store, dataset, World(rank, size, rank, size), train) for rank in range(size)]
    for step in (0, 1, 12, 13):  # step 12 straddles two epochs
        together = sorted(
            (microbatch for source in ranks for microbatch in source.batch(step).microbatches),
            key=lambda microbatch: microbatch.index,
        )
        expected = alone.batch(step).microbatches
        assert [microbatch.index for microbatch in together] == list(range(NUM_MICROBATCHES))
        for mine, theirs in zip(together, expected, strict=True):
            assert torch.equal(mine.tokens, theirs.tokens)  # shapes as well
            assert mine.groups == theirs.groups
            assert torch.equal(mine.labels, theirs.labels)
            assert mine.rows.tolist() == theirs.rows.tolist()
        assert (max(len(microbatch.groups) for microbatch in together) > 1) == (train is IN_GROUPS)


@pytest.mark.parametrize("train", [IN_GROUPS, IN_ONE_GROUP])
def test_a_microbatch_says_which_samples_it_is_made_of(
    store: LocalStore, dataset: DatasetManifest, train: TrainConfig
) -> None:
    reader = make_reader(store, dataset)
    stored = reader.read(RowOrder(reader.num_rows, reader.group_rows), 0, reader.num_rows)
    for microbatch in make_source(store, dataset, World(0, 1, 0, 1), train).batch(12).microbatches:
        expected = stored.at(microbatch.rows)
        assert microbatch.ids == expected.separated_ids().tobytes()[:-1]
        for tokens, length, row in zip(
            rows_of(microbatch), microbatch.lengths.tolist(), tokens_of(expected), strict=True
        ):
            assert tokens[:length] == row
            assert not any(tokens[length:])


def test_the_microbatches_of_a_step_are_made_of_the_samples_that_are_due(
    store: LocalStore, dataset: DatasetManifest
) -> None:
    source, order = make_source(store, dataset, World(0, 1, 0, 1)), SampleOrder(300, dataset.row_group_rows, seed=4)
    for step in (0, 12, 13):
        rows = np.concatenate([microbatch.rows for microbatch in source.batch(step).microbatches])
        assert sorted(rows.tolist()) == sorted(order.rows(step * BATCH_SIZE, BATCH_SIZE).tolist())


def test_a_rank_copies_the_tokens_of_its_own_microbatches_alone_where_a_batch_straddles_windows_too(
    store: LocalStore, dataset: DatasetManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered: list[int] = []
    gather = ByteStrings.gather

    def gather_and_tell(strings: ByteStrings, behind: NDArray[np.int64], filler: int) -> Bytes:
        if filler == 0:  # tokens, not ids
            gathered.append(int(strings.sizes.sum()))
        return gather(strings, behind, filler)

    monkeypatch.setattr(ByteStrings, "gather", gather_and_tell)
    monkeypatch.setattr("training.batches.blocks.BLOCK_STEPS", 1)
    for step in (0, 12):  # the second one straddles two epochs
        gathered.clear()
        batch = make_source(store, dataset, World(1, 3, 0, 1)).batch(step)
        own = sum(int(microbatch.lengths.sum()) for microbatch in batch.microbatches)
        assert 0 < own < batch.num_tokens / 2
        assert gathered == [own * np.dtype(np.uint16).itemsize]


def test_an_epoch_of_batches_has_every_sample_once(store: LocalStore, dataset: DatasetManifest) -> None:
    reader = make_reader(store, dataset)
    order = order_of(reader)
    ids = [sample for step in range(10) for sample in ids_of(reader.read(order, step * 30, 30))]
    assert sorted(ids) == sorted(f"train-{row}" for row in range(300))


def test_a_row_is_the_same_whichever_way_it_is_reached(store: LocalStore, dataset: DatasetManifest) -> None:
    reader = make_reader(store, dataset)
    stored = reader.read(RowOrder(300, reader.group_rows), 0, 300)
    other = make_reader(store, dataset)
    for cursor, count in ((0, 24), (250, 120), (17, 1), (0, 300)):  # the second one straddles windows and two epochs
        found = other.read(order_of(other), cursor, count)
        expected = stored.at(found.rows)
        assert found.rows.tolist() == order_of(other).rows(cursor, count).tolist()
        assert ids_of(found) == ids_of(expected) == [f"train-{row}" for row in found.rows.tolist()]
        assert tokens_of(found) == tokens_of(expected)
        assert np.array_equal(found.labels, expected.labels)
        assert np.array_equal(found.numeric, expected.numeric)
        assert np.array_equal(found.categorical, expected.categorical)


def test_steps_one_after_the_other_give_what_each_gives_alone(store: LocalStore, dataset: DatasetManifest) -> None:
    together = list(make_source(store, dataset, World(0, 1, 0, 1)).batches(3, 13))
    assert len(together) == 10
    for step, batch in zip(range(3, 13), together, strict=True):
        alone = make_source(store, dataset, World(0, 1, 0, 1)).batch(step)
        assert batch.num_tokens == alone.num_tokens
        for mine, theirs in zip(batch.microbatches, alone.microbatches, strict=True):
            assert torch.equal(mine.tokens, theirs.tokens)


def test_padding_does_not_reach_the_logits(store: LocalStore, dataset: DatasetManifest) -> None:
    torch.manual_seed(0)
    model = make_encoder(MODEL, dataset).eval()
    microbatch = make_source(store, dataset, World(0, 1, 0, 1), IN_ONE_GROUP).batch(0).microbatches[0]
    wider = torch.nn.functional.pad(microbatch.tokens, (0, PADDING_MULTIPLE))
    wider[:, -PADDING_MULTIPLE:] = 7  # whatever stands there
    padded = replace(microbatch, tokens=wider)
    assert wider.shape[1] <= model.position_embedding.num_embeddings
    assert torch.allclose(model(microbatch), model(padded), atol=1e-6)


@pytest.mark.parametrize("train", [IN_GROUPS, IN_ONE_GROUP])
def test_a_text_without_any_token_gives_finite_logits(
    store: LocalStore, dataset: DatasetManifest, train: TrainConfig
) -> None:
    model = make_encoder(MODEL, dataset)
    microbatch = make_source(store, dataset, World(0, 1, 0, 1), train).batch(0).microbatches[0]
    logits = model(replace(microbatch, lengths=torch.zeros_like(microbatch.lengths)))
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_no_flipped_bit_of_a_shard_is_trained_on(store: LocalStore, dataset: DatasetManifest) -> None:
    """Most are noticed; one in a place that nothing reads changes nothing."""
    expected = read_stored(store, dataset)
    path = store.fetch(f"datasets/{dataset.digest}/{dataset.splits['train'].shards[0].name}")
    original = path.read_bytes()
    noticed = 0
    for position in range(0, len(original), 71):
        path.write_bytes(original[:position] + bytes([original[position] ^ 4]) + original[position + 1 :])
        try:
            found = read_stored(store, dataset)
        except CorruptObjectError:
            noticed += 1
            continue
        assert ids_of(found) == ids_of(expected)
        assert tokens_of(found) == tokens_of(expected)
        assert np.array_equal(found.labels, expected.labels)
        assert np.array_equal(found.numeric, expected.numeric)
        assert np.array_equal(found.categorical, expected.categorical)
    path.write_bytes(original)
    assert noticed > 50


def read_stored(store: LocalStore, dataset: DatasetManifest) -> Samples:
    """The first shard's rows as they stand there."""
    reader = make_reader(store, dataset)
    return reader.read(RowOrder(reader.num_rows, reader.group_rows), 0, 64)
