"""Weights of rows, from a column of the source to the training loss: with mean 1, and in no digest that has none."""

import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from pydantic import ValidationError

from storage.datasets import MANIFEST_NAME, DatasetManifest, dataset_key, load_dataset
from storage.errors import ContractError
from storage.objects.local_store import LocalStore
from storage.runs.ledger import ID_SEPARATOR
from tasks.data.pipeline import prepare_dataset
from tasks.models.labelled_table import SPLIT, prepare_table
from tests.helpers.parquet import (
    read_rows,
    read_split,
    text_columns,
    text_config,
    token_columns,
    token_config,
    write_table,
)
from training.batches.assembled import assemble_shares, share_batch
from training.batches.microbatches import MicrobatchCut
from training.batches.tensors import to_microbatches
from training.data.order import RowOrder
from training.data.reading import SampleReader
from training.models.objective import Objective

NUM_ROWS = 120


def weights() -> list[float]:
    return [float(row % 4) for row in range(NUM_ROWS)]


def prepare(config: Any, folder: Path) -> DatasetManifest:
    return prepare_dataset(config, LocalStore(folder / "store"), folder / "scratch")


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.jsonl"])
def test_weights_are_divided_by_their_mean_over_the_training_split(tmp_path: Path, name: str) -> None:
    source = write_table(tmp_path / name, text_columns(NUM_ROWS) | {"importance": weights()})
    dataset = prepare(text_config(source, weight="importance"), tmp_path)
    rows = read_rows(LocalStore(tmp_path / "store"), dataset)
    of_training = [weights()[int(name[1:])] for name, row in rows.items() if row["split"] == "train"]
    assert dataset.weight is not None and dataset.weight.name == "importance"
    assert dataset.weight.mean == pytest.approx(sum(of_training) / len(of_training))
    for name, row in rows.items():
        assert row["weight"] == pytest.approx(weights()[int(name[1:])] / dataset.weight.mean)


def test_rows_with_tokens_have_them_too_and_a_reader_gives_each_sample_its_own(tmp_path: Path) -> None:
    source = write_table(tmp_path / "a.parquet", token_columns(NUM_ROWS) | {"importance": weights()})
    dataset, store = prepare(token_config(source, weight="importance"), tmp_path), LocalStore(tmp_path / "store")
    assert dataset.weight is not None
    reader = SampleReader(store, dataset, "train", tmp_path / "kept")
    order = RowOrder(reader.num_rows, reader.group_rows, reader.num_rows)
    samples = reader.read(order, 0, reader.num_rows)
    cut = MicrobatchCut(16, 0.9)
    shares = share_batch(samples.lengths, cut, 3, 1)
    for microbatch in to_microbatches(assemble_shares(samples, shares, [0]), 0, 3, is_flat=True):
        ids = microbatch.ids.decode().split(ID_SEPARATOR)
        expected = [weights()[int(name)] / dataset.weight.mean for name in ids]
        assert microbatch.weights.tolist() == pytest.approx(expected)


def test_another_table_is_evaluated_without_weights(tmp_path: Path) -> None:
    source = write_table(tmp_path / "a.parquet", text_columns(NUM_ROWS) | {"importance": weights()})
    config, store = text_config(source, weight="importance"), LocalStore(tmp_path / "store")
    dataset = prepare(config, tmp_path)
    other = write_table(tmp_path / "b.parquet", text_columns(10, first=700))
    (tmp_path / "table").mkdir()
    table = prepare_table(str(other), config, dataset, store, tmp_path / "table")
    found = load_dataset(LocalStore(Path(table.store)), table.digest)
    assert found.weight is None
    assert "weight" not in read_split(LocalStore(Path(table.store)), found, SPLIT).column_names


def test_without_weights_nothing_states_them_and_each_row_counts_alike(tmp_path: Path) -> None:
    source = write_table(tmp_path / "a.parquet", text_columns(NUM_ROWS))
    dataset, store = prepare(text_config(source), tmp_path), LocalStore(tmp_path / "store")
    assert dataset.weight is None
    assert b"weight" not in store.read(dataset_key(dataset.digest, MANIFEST_NAME))
    shard = dataset_key(dataset.digest, dataset.splits["train"].shards[0].name)
    assert "weight" not in pq.read_schema(store.fetch(shard)).names
    assert "weight" not in dataset.inputs["data"]  # type: ignore[operator]


def with_value(value: float | None) -> dict[str, Any]:
    return text_columns(NUM_ROWS) | {"importance": [*weights()[:7], value, *weights()[8:]]}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (with_value(None), "a value in every row"),
        (with_value(math.nan), "a value in every row"),
        (with_value(-1.0), "finite numbers of at least 0"),
        (with_value(math.inf), "finite numbers of at least 0"),
        (text_columns(NUM_ROWS) | {"importance": [0.0] * NUM_ROWS}, "a mean over the training split"),
        (
            text_columns(NUM_ROWS) | {"importance": ["high"] * NUM_ROWS},
            "real numbers, for data.weight",
        ),
    ],
)
def test_weights_that_cannot_be_are_one_error(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError) as caught:
        prepare(text_config(write_table(tmp_path / "a.parquet", columns), weight="importance"), tmp_path)
    assert "Column 'importance'" in str(caught.value) and message in str(caught.value)


def test_a_column_is_either_a_weight_or_an_input() -> None:
    with pytest.raises(ValidationError, match="named twice: age"):
        text_config("a.parquet", weight="age", numeric=["age"])


def test_the_loss_is_the_weighted_sum_and_a_weight_of_1_changes_no_bit(tmp_path: Path) -> None:
    source = write_table(tmp_path / "a.parquet", text_columns(NUM_ROWS))
    dataset = prepare(text_config(source), tmp_path)
    objective = Objective(dataset.target, dataset.splits["train"].num_rows, 0.5, 0.1, batch_size=8)
    logits, labels = torch.randn(4, 3, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 0])
    losses = objective.kind.weighted_losses(logits, labels, objective.class_weights, 0.1)
    weighted = objective(logits, labels, torch.tensor([0.0, 2.0, 1.0, 1.0]))
    assert weighted.item() == pytest.approx((2 * losses[1] + losses[2] + losses[3]).item() / 8)
    assert torch.equal(objective(logits, labels, torch.ones(4)), losses.sum() / 8)
