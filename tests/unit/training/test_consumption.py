"""What the ledger is told: the samples that the model consumed, under their rows and the MD5 of their ids."""

import hashlib
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from storage.datasets import DatasetManifest
from storage.objects.local_store import LocalStore
from storage.runs.ledger import ID_SEPARATOR, LEDGER_SCHEMA
from tests.helpers.datasets import publish_small_dataset
from training.batches.assembled import assemble_samples
from training.batches.blocks import Blocks
from training.batches.consumption import Consumption, md5_of_ids
from training.batches.groups import Group
from training.batches.source import BatchSource
from training.batches.tensors import Microbatch, to_microbatches
from training.configuration import TrainConfig
from training.data.order import RowOrder, SampleOrder
from training.data.reading import SampleReader
from training.model_configuration import EncoderConfig
from training.models.source import microbatch_cut
from training.world import World

ALONE = World(0, 1, 0, 1)
BATCH_SIZE = 24
NUM_MICROBATCHES = 5
CUT = microbatch_cut(EncoderConfig(width=16, layers=1, heads=2, feedforward=32), TrainConfig())


@pytest.fixture
def dataset(store: LocalStore, tmp_path: Path) -> DatasetManifest:
    return publish_small_dataset(store, tmp_path / "work", rows=100)


@pytest.fixture
def reader(store: LocalStore, dataset: DatasetManifest, tmp_path: Path) -> SampleReader:
    return SampleReader(store, dataset, "train", tmp_path / "samples")


def microbatch_of(reader: SampleReader, rows: list[int], index: int) -> Microbatch:
    stored = reader.read(RowOrder(reader.num_rows, reader.group_rows), 0, reader.num_rows)
    samples = stored.at(np.array(rows))
    groups = (Group(len(rows), int(samples.lengths.max())),)
    return next(to_microbatches(assemble_samples(samples, [index], [groups]), 0, 1, is_flat=True))


def md5_of_rows(rows: list[int]) -> bytes:
    return hashlib.md5("\x1f".join(f"train-{row}" for row in rows).encode()).digest()


def collected(consumption: Consumption) -> pa.Table:
    table = consumption.collect()
    assert table is not None
    assert table.schema.equals(LEDGER_SCHEMA)
    table.validate(full=True)
    return table


def test_microbatches_are_listed_by_step_and_microbatch_in_whatever_order_they_were_computed(
    reader: SampleReader,
) -> None:
    consumption = Consumption(ALONE)
    for step, index, rows in [(4, 2, [7, 3]), (4, 0, [99]), (3, 1, [5, 5, 0]), (12, 0, [1]), (4, 1, [2])]:
        consumption.record(step, microbatch_of(reader, rows, index))
    assert collected(consumption).to_pylist() == [
        {"step": step, "microbatch": index, "rows": rows, "ids_md5": md5_of_rows(rows)}
        for step, index, rows in [(3, 1, [5, 5, 0]), (4, 0, [99]), (4, 1, [2]), (4, 2, [7, 3]), (12, 0, [1])]
    ]


def test_each_microbatch_is_collected_once(reader: SampleReader) -> None:
    consumption = Consumption(ALONE)
    consumption.record(0, microbatch_of(reader, [1, 2], 0))
    assert collected(consumption).num_rows == 1
    assert collected(consumption).num_rows == 0
    consumption.record(1, microbatch_of(reader, [3], 0))
    assert collected(consumption).column("rows").to_pylist() == [[3]]


def test_what_was_taken_and_not_trained_on_is_not_collected(reader: SampleReader) -> None:
    consumption = Consumption(ALONE)
    order = SampleOrder(reader.num_rows, reader.group_rows, seed=4)
    source = BatchSource(Blocks(reader, order, CUT, BATCH_SIZE, NUM_MICROBATCHES, ALONE), pin=False)
    for step, batch in zip(range(2), source.batches(0, 10), strict=False):
        for microbatch in batch.microbatches:
            consumption.record(step, microbatch)
    assert set(collected(consumption).column("step").to_pylist()) == {0, 1}


def test_the_rows_are_those_that_order_and_cut_give(reader: SampleReader) -> None:
    order = SampleOrder(reader.num_rows, reader.group_rows, seed=4)
    source = BatchSource(Blocks(reader, order, CUT, BATCH_SIZE, NUM_MICROBATCHES, ALONE), pin=False)
    consumption = Consumption(ALONE)
    for step in (0, 4, 5):  # step 4 straddles two epochs
        for microbatch in source.batch(step).microbatches:
            consumption.record(step, microbatch)
    found = collected(consumption).to_pylist()
    for step in (0, 4, 5):
        rows = order.rows(step * BATCH_SIZE, BATCH_SIZE)
        positions = CUT.cut(reader.read(order, step * BATCH_SIZE, BATCH_SIZE).lengths, NUM_MICROBATCHES)
        assert [row["rows"] for row in found if row["step"] == step] == [rows[places].tolist() for places in positions]


def test_the_ids_are_those_that_were_read_and_not_those_that_were_planned(reader: SampleReader) -> None:
    """A row that gives another sample than it should, as from a data set that was changed, cannot hide."""
    consumption = Consumption(ALONE)
    microbatch = microbatch_of(reader, [1, 2], 0)
    consumption.record(0, replace(microbatch, ids=microbatch.ids.replace(b"train-2", b"train-77")))
    (row,) = collected(consumption).to_pylist()
    assert row["rows"] == [1, 2]
    assert row["ids_md5"] == md5_of_rows([1, 77])


@pytest.mark.parametrize("ids", [["a"], ["a", "b"], ["Grüße", "数据", ""], ["", ""], [f"{n}" for n in range(500)]])
def test_the_md5_is_the_one_that_duckdb_takes(ids: list[str]) -> None:
    microbatch = pa.table({"position": range(len(ids)), "id": ids})  # noqa: F841 - DuckDB finds it by its name
    query = "SELECT unhex(md5(string_agg(id, chr(31) ORDER BY position))) FROM microbatch"
    assert duckdb.execute(query).fetchall() == [(md5_of_ids(ID_SEPARATOR.join(ids).encode()),)]


def test_ids_that_run_together_are_told_apart() -> None:
    joined = [ID_SEPARATOR.join(ids) for ids in (["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"], ["abc", ""])]
    assert len({md5_of_ids(ids.encode()) for ids in joined}) == 5
