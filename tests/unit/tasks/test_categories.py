"""What becomes of categories: their places in the vocabulary, of however many columns."""

from pathlib import Path
from typing import Any

import pytest

from storage.datasets import FIRST_VOCABULARY_INDEX, MISSING_INDEX, UNSEEN_INDEX
from storage.objects.local_store import LocalStore
from tasks.data.pipeline import prepare_dataset
from tests.helpers.parquet import (
    read_rows,
    text_columns,
    text_config,
    token_columns,
    token_config,
    write_parquet,
)

NUM_COLUMNS = 100


@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_a_hundred_columns_of_categories_are_dealt_within_512_mb(tmp_path: Path, kind: str) -> None:
    make_columns, make_config = (text_columns, text_config) if kind == "text" else (token_columns, token_config)
    names = [f"category{i}" for i in range(NUM_COLUMNS)]
    columns: dict[str, Any] = make_columns(3000)
    columns |= {
        name: [None if row % 7 == i % 7 else f"v{row % (i + 2)}" for row in range(3000)] for i, name in enumerate(names)
    }
    source = write_parquet(tmp_path / "a.parquet", columns)
    config = make_config(source, categorical=names, memory_limit="512MB", max_missing_fraction=0.5)
    store = LocalStore(tmp_path / "store")
    manifest = prepare_dataset(config, store, tmp_path / "scratch")
    found = read_rows(store, manifest)
    for row, id_ in enumerate(map(str, columns["sample_id"])):
        for column, index in zip(manifest.categorical, found[id_]["categorical"], strict=True):
            value = columns[column.name][row]
            known = (
                column.vocabulary.index(value) + FIRST_VOCABULARY_INDEX if value in column.vocabulary else UNSEEN_INDEX
            )
            assert index == (MISSING_INDEX if value is None else known)
