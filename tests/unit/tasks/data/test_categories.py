"""What becomes of categories: their names, the same in every format, and their places in the vocabularies."""

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.datasets import FIRST_VOCABULARY_INDEX, MISSING_INDEX, UNSEEN_INDEX
from storage.objects.local_store import LocalStore
from tasks.data.pipeline import prepare_dataset
from tasks.data.readers.values import meanings_of
from tests.helpers.parquet import (
    open_samples,
    read_rows,
    text_columns,
    text_config,
    token_columns,
    token_config,
    write_parquet,
)
from training.export.standalone.holdfast_inputs import category_name

NUM_COLUMNS = 100
NUMBERS = [0.0, -0.0, 3.0, 2.5, 0.1, 1e-5, 5e-324, 999_999_999_999_999.0, 1e15, 9_999_999_999_999_998.0, 1e16, 1.5e16]
NUMBERS += [123_456_789_012_345_680.0, 1e21, 1e22, 1.7e308, float("inf")]


@settings(max_examples=20, deadline=None)
@given(numbers=st.lists(st.floats(allow_nan=False), min_size=1), wholes=st.lists(st.integers(0, 10**19), min_size=1))
def test_numbers_of_any_size_are_named_in_json_lines_and_by_an_exported_model_as_in_parquet(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[float], wholes: list[int]
) -> None:
    numbers += [sign * number for number in NUMBERS for sign in (1, -1)]
    numbers += [float(whole) for whole in wholes]
    names = [f"s{i}" for i in range(len(numbers))]
    others = {"sample_id": names, "text": names, "domain": names}
    path = write_parquet(tmp_path_factory.mktemp("numbers") / "a.parquet", {**others, "region": numbers})
    config = text_config(path, categorical=["region"])
    with duckdb.connect() as connection:
        open_samples(connection, config)
        in_parquet = connection.execute("SELECT c0 FROM samples").fetchall()
    (meaning,) = (found for found in meanings_of(config, is_typed=True) if found.column == "region")
    in_json = [meaning.parse(json.loads(json.dumps(number))) for number in numbers]
    assert in_json == [name for (name,) in in_parquet]
    assert [category_name(number) for number in numbers] == in_json


@pytest.mark.parametrize("kind", ["text", pytest.param("tokens", marks=pytest.mark.slow)])
def test_a_hundred_columns_of_categories_are_assigned_within_512_mb(tmp_path: Path, kind: str) -> None:
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
    known = [
        {None: MISSING_INDEX} | {value: i + FIRST_VOCABULARY_INDEX for i, value in enumerate(column.vocabulary)}
        for column in manifest.categorical
    ]
    rows = zip(
        *(columns[name] for name in ["sample_id", *(column.name for column in manifest.categorical)]), strict=True
    )
    for id_, *values in rows:
        expected = [index.get(value, UNSEEN_INDEX) for index, value in zip(known, values, strict=True)]
        assert found[str(id_)]["categorical"] == expected
