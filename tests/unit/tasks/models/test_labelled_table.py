"""A table that a run was not trained on becomes what its own rows are: same tokens, numbers, categories, labels."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage.datasets import UNSEEN_INDEX, DatasetManifest, load_dataset
from storage.objects.local_store import LocalStore
from tasks.configuration.run import DataConfig
from tasks.data.pipeline import prepare_dataset
from tasks.models.labelled_table import SPLIT, prepare_table
from tests.helpers.parquet import (
    read_rows,
    read_split,
    text_columns,
    text_config,
    token_columns,
    token_config,
    write_parquet,
    write_table,
)

METADATA = {"numeric": ["length", "score"], "categorical": ["region"]}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[..., DataConfig]]] = {
    "text": (text_columns(150), METADATA, text_config),
    "tokens": (token_columns(150), {"split": {"by": "column", "column": "shard_id"}}, token_config),
}


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def prepare_run(store: LocalStore, folder: Path, kind: str) -> tuple[DataConfig, DatasetManifest]:
    """The data set of a run, and its configuration."""
    columns, settings, configure = KINDS[kind]
    config = configure(write_parquet(folder / "own" / "part-0.parquet", columns), **settings)
    return config, prepare_dataset(config, store, folder / "scratch")


def prepare_other(
    columns: dict[str, Any], config: DataConfig, dataset: DatasetManifest, store: LocalStore, folder: Path,
    name: str = "table.parquet",
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """The rows of a table as the model will see them, by their ids."""
    source = write_table(folder / "other" / name, columns)
    (folder / "prepared").mkdir()
    table = prepare_table(str(source), config, dataset, store, folder / "prepared")
    own = LocalStore(Path(table.store))
    found = load_dataset(own, table.digest, table.sha256)
    assert [name for name, split in found.splits.items() if split.num_rows] == [SPLIT]
    return {row["id"]: row for row in read_split(own, found, SPLIT).to_pylist()}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_the_run_become_what_they_were(store: LocalStore, tmp_path: Path, kind: str) -> None:
    """Of all splits, some of them only: statistics or vocabularies of their own would be others."""
    config, dataset = prepare_run(store, tmp_path, kind)
    before = list(store.list_keys(""))
    some = pa.table(KINDS[kind][0]).slice(40, 50).to_pydict()
    rows = prepare_other(some, config, dataset, store, tmp_path)
    own = {name: row for name, row in read_rows(store, dataset).items() if name in rows}
    assert len(rows) == 50
    assert {row.pop("split") for row in own.values()} == {"train", "validation", "test"}
    assert rows == own
    assert list(store.list_keys("")) == before


def test_a_table_of_another_format_may_lack_the_column_that_splits_and_have_unseen_values(
    store: LocalStore, tmp_path: Path
) -> None:
    config, dataset = prepare_run(store, tmp_path, "text")
    columns = text_columns(20, first=1000) | {"region": ["r1", "nowhere"] * 10}
    rows = prepare_other(columns, config, dataset, store, tmp_path, "table.csv")
    assert {row["categorical"][0] for row in rows.values()} == {
        UNSEEN_INDEX,
        dataset.categorical[0].vocabulary.index("r1") + 2,
    }


def test_a_table_that_is_a_file_of_the_training_data_is_said(
    store: LocalStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, dataset = prepare_run(store, tmp_path, "text")
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        prepare_other(KINDS["text"][0], config, dataset, store, tmp_path)
    assert "table.parquet has the same bytes as part-0.parquet of the run's data" in caplog.text
