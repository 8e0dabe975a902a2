"""What the ledger is told: the samples that the model consumed, under their rows and the MD5 of their ids."""

import hashlib
import math
from dataclasses import replace
from itertools import accumulate, chain
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
import torch

from storage.datasets import DatasetManifest
from storage.objects.local_store import LocalStore
from storage.runs.ledger import ID_SEPARATOR, LEDGER_SCHEMA
from tests.helpers.datasets import publish_small_dataset
from training.batches.assembled import assemble_samples
from training.batches.blocks import Blocks
from training.batches.consumption import Consumption
from training.batches.groups import Group
from training.batches.receipts import ReceiptWords, md5_of_ids
from training.batches.source import BatchSource
from training.batches.tensors import Microbatch, to_microbatches
from training.configuration import TrainConfig
from training.data.order import RowOrder, SampleOrder
from training.data.reading import SampleReader
from training.model_configuration import EncoderConfig
from training.models.source import microbatch_cut
from training.world import World

BATCH_SIZE = 24
NUM_MICROBATCHES = 5
CUT = microbatch_cut(EncoderConfig(width=16, layers=1, heads=2, feedforward=32), TrainConfig())


@pytest.fixture
def dataset(store: LocalStore, tmp_path: Path) -> DatasetManifest:
    return publish_small_dataset(store, tmp_path / "work", rows=100)


@pytest.fixture
def reader(store: LocalStore, dataset: DatasetManifest, tmp_path: Path) -> SampleReader:
    return SampleReader(store, dataset, "train", tmp_path / "samples")


def microbatches_of(reader: SampleReader, rows: list[list[int]]) -> list[Microbatch]:
    """A batch of microbatches with these rows."""
    stored = reader.read(RowOrder(reader.num_rows, reader.group_rows), 0, reader.num_rows)
    samples = stored.at(np.array(list(chain(*rows))))
    groups = [(Group(len(own), int(samples.lengths.max())),) for own in rows]
    starts = list(accumulate(map(len, rows), initial=0))[:-1]
    assembled = assemble_samples(samples, range(len(rows)), groups, starts)
    return list(to_microbatches(assembled, 0, len(rows), is_flat=True))


def md5_of_rows(rows: list[int]) -> bytes:
    return hashlib.md5("\x1f".join(f"train-{row}" for row in rows).encode()).digest()


class Recorded:
    """What ranks consumed in batches of `batch_size` samples."""

    def __init__(self, num_microbatches: int, batch_size: int) -> None:
        self._receipts = ReceiptWords(num_microbatches, batch_size)
        self.consumption = Consumption(self._receipts)

    def step(self, step: int, *shares: list[Microbatch]) -> None:
        """Each rank's share of a step."""
        words = torch.stack([self._receipts.of_samples(share) for share in shares]).sum(dim=0)
        losses = torch.zeros(self._receipts.num_words - len(words), dtype=torch.int64)
        self.consumption.record(step, torch.cat([losses, words]))

    def table(self) -> pa.Table:
        table = self.consumption.table()
        assert table.schema.equals(LEDGER_SCHEMA)
        table.validate(full=True)
        return table


def test_microbatches_are_listed_by_step_and_microbatch_whichever_rank_computed_them(reader: SampleReader) -> None:
    recorded = Recorded(3, 6)
    batches = {3: [[5, 5, 0], [99], [7, 3]], 4: [[1], [2], [4, 6, 8, 9]]}
    for step, rows in batches.items():
        first, second, third = microbatches_of(reader, rows)
        recorded.step(step, [third, first], [second])
    assert recorded.table().to_pylist() == [
        {"step": step, "microbatch": index, "rows": own, "ids_md5": md5_of_rows(own)}
        for step, rows in batches.items()
        for index, own in enumerate(rows)
    ]


def test_what_the_ledger_has_is_not_written_again(reader: SampleReader) -> None:
    recorded = Recorded(1, 2)
    assert recorded.table().num_rows == 0
    for step in (7, 8, 9):
        recorded.step(step, microbatches_of(reader, [[step, 1]]))
    recorded.consumption.forget_before(9)
    assert recorded.table().column("rows").to_pylist() == [[9, 1]]
    recorded.step(10, microbatches_of(reader, [[3, 2]]))
    assert recorded.table().column("step").to_pylist() == [9, 10]


def test_the_rows_are_those_that_order_and_cut_give(reader: SampleReader) -> None:
    order = SampleOrder(reader.num_rows, reader.group_rows, seed=4)
    worlds = [World(rank, 2, rank, 2) for rank in range(2)]
    sources = [
        BatchSource(Blocks(reader, order, CUT, BATCH_SIZE, NUM_MICROBATCHES, world), pin=False) for world in worlds
    ]
    recorded = Recorded(NUM_MICROBATCHES, BATCH_SIZE)
    for step in (0, 4, 5):  # step 4 straddles two epochs
        recorded.step(step, *(source.batch(step).microbatches for source in sources))
    found = recorded.table().to_pylist()
    for step in (0, 4, 5):
        rows = order.rows(step * BATCH_SIZE, BATCH_SIZE)
        positions = CUT.cut(reader.read(order, step * BATCH_SIZE, BATCH_SIZE).lengths, NUM_MICROBATCHES)
        assert [row["rows"] for row in found if row["step"] == step] == [rows[places].tolist() for places in positions]


def test_the_ids_are_those_that_were_read_and_not_those_that_were_planned(reader: SampleReader) -> None:
    """A row that gives another sample than it should, as from a data set that was changed, cannot hide."""
    recorded = Recorded(1, 2)
    (microbatch,) = microbatches_of(reader, [[1, 2]])
    recorded.step(0, [replace(microbatch, ids=microbatch.ids.replace(b"train-2", b"train-77"))])
    (row,) = recorded.table().to_pylist()
    assert row["rows"] == [1, 2]
    assert row["ids_md5"] == md5_of_rows([1, 77])


def test_losses_stand_before_them_to_the_bit() -> None:
    receipts = ReceiptWords(2, 5)
    words = torch.zeros(receipts.num_words, dtype=torch.int64)
    receipts.losses(words)[1] = torch.tensor(0.1, dtype=torch.float32)
    other = torch.zeros_like(words)
    receipts.losses(other)[0] = math.nan
    losses = receipts.losses(words + other)
    assert math.isnan(losses[0]) and losses[1] == torch.tensor(0.1).double()


@pytest.mark.parametrize("ids", [["a"], ["a", "b"], ["Grüße", "数据", ""], ["", ""], [f"{n}" for n in range(500)]])
def test_the_md5_is_the_one_that_duckdb_takes(ids: list[str]) -> None:
    microbatch = pa.table({"position": range(len(ids)), "id": ids})  # noqa: F841 - DuckDB finds it by its name
    query = "SELECT unhex(md5(string_agg(id, chr(31) ORDER BY position))) FROM microbatch"
    assert duckdb.execute(query).fetchall() == [(md5_of_ids(ID_SEPARATOR.join(ids).encode()),)]


def test_ids_that_run_together_are_told_apart() -> None:
    joined = [ID_SEPARATOR.join(ids) for ids in (["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"], ["abc", ""])]
    assert len({md5_of_ids(ids.encode()) for ids in joined}) == 5
