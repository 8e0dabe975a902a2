"""Sources that are not Parquet: the same rows make the same samples. Mistakes: `test_broken_formats.py`."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage.datasets import DatasetManifest
from storage.errors import ContractError
from storage.objects.digests import digest_of, sha256_of_file
from storage.objects.local_store import LocalStore
from tasks.configuration.run import DataConfig
from tasks.data.pipeline import prepare_dataset
from tasks.data.readers import conversion
from tests.helpers.parquet import (
    inputs_of,
    read_rows,
    text_columns,
    text_config,
    token_columns,
    token_config,
    write_table,
)

FORMATS = ("csv", "jsonl", "feather")
SUFFIXES = (*FORMATS, "csv.gz", "tsv", "ndjson.gz", "arrow")
METADATA: dict[str, Any] = {"numeric": ["length", "score"], "categorical": ["region"]}
NUM_ROWS = 300
Columns = dict[str, Any]


def prepared(config: DataConfig, folder: Path) -> tuple[LocalStore, DatasetManifest]:
    store = LocalStore(folder / "store")
    return store, prepare_dataset(config, store, folder / "scratch")


def content(manifest: DatasetManifest) -> dict[str, Any]:
    """All that training and evaluation read of a data set, with the hash of every shard."""
    return manifest.model_dump(exclude={"digest", "inputs", "versions", "contract"})


def assert_same_samples(
    make_config: Callable[[Path], DataConfig], parts: list[Columns], root: Path, kinds: Sequence[str] = FORMATS
) -> None:
    """The data sets of these parts, written as Parquet and in each of these formats, have the same content."""
    manifests = {}
    for suffix in ("parquet", *kinds):
        for index, columns in enumerate(parts):
            write_table(root / suffix / "data" / f"part-{index}.{suffix}", columns)
        manifests[suffix] = prepared(make_config(root / suffix / "data"), root / suffix)[1]
        assert content(manifests[suffix]) == content(manifests["parquet"]), suffix
    assert len({manifest.digest for manifest in manifests.values()}) == len(manifests)


def odd_texts(num_rows: int) -> list[str]:
    odd = [
        'say "so"',
        "a, b;\tc",
        "two\nlines",
        "two\r\nlines",
        "naïve café 東京 🙂",
        "'quoted'",
        " spaces ",
        "007",
        "NULL",
    ]
    return [f"{odd[i % len(odd)]} {i}" if i % 3 else odd[i % len(odd)] for i in range(num_rows)]


@pytest.mark.parametrize(("id_column", "kinds"), [("sample_id", SUFFIXES), (None, FORMATS)])
def test_the_same_rows_give_the_same_samples_in_every_format(
    tmp_path: Path, id_column: str | None, kinds: tuple[str, ...]
) -> None:
    parts = [text_columns(NUM_ROWS // 3, first=i * NUM_ROWS // 3) for i in range(3)]
    parts[1]["text"] = odd_texts(NUM_ROWS // 3)
    # What Parquet has as nulls in the whole of a file is there in the others too.
    parts[2]["length"] = pa.nulls(NUM_ROWS // 3, pa.int64())
    changes = METADATA | {"id": id_column, "max_missing_fraction": 0.5}
    assert_same_samples(lambda source: text_config(source, **changes), parts, tmp_path, kinds)


def test_token_lists_masks_and_boolean_labels_are_the_same_in_every_format(tmp_path: Path) -> None:
    split = {"by": "column", "column": "shard_id"}
    assert_same_samples(lambda source: token_config(source, split=split), [token_columns(200)], tmp_path)


def with_padding(columns: Columns, padding: list[int]) -> Columns:
    """The same rows, with these numbers where the mask is 0."""
    rows = zip(columns["input_ids"].to_pylist(), columns["attention_mask"].to_pylist(), strict=True)
    tokens = [
        [token if kept else padding[i % len(padding)] for i, (token, kept) in enumerate(zip(*row, strict=True))]
        for row in rows
    ]
    return columns | {"input_ids": pa.array(tokens, pa.list_(pa.uint64()))}


def test_padding_of_unsigned_numbers_beyond_the_signed_ones_is_hidden_by_the_mask_in_every_format(
    tmp_path: Path,
) -> None:
    columns = token_columns(200)
    source = write_table(tmp_path / "zeros" / "part-0.parquet", columns)
    zeros = prepared(token_config(source), tmp_path / "zeros")[1]
    beyond = with_padding(columns, [2**63, 2**64 - 1])
    assert_same_samples(token_config, [beyond], tmp_path / "beyond")
    found = prepared(token_config(write_table(tmp_path / "a.parquet", beyond)), tmp_path)[1]
    assert content(found) == content(zeros)


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_an_unsigned_number_that_the_mask_does_not_hide_is_a_token_id_out_of_range(tmp_path: Path, suffix: str) -> None:
    columns = token_columns(200)
    tokens = columns["input_ids"].to_pylist()
    tokens[7][0] = 2**64 - 1
    columns["input_ids"] = pa.array(tokens, pa.list_(pa.uint64()))
    with pytest.raises(ContractError, match=r"'input_ids' breaks the contract: token ids out of range[\s\S]*row 7"):
        prepared(token_config(write_table(tmp_path / f"a.{suffix}", columns)), tmp_path)


@pytest.mark.parametrize("zone", [pytest.param(None, marks=pytest.mark.slow), UTC])
def test_a_split_by_time_is_the_same_in_every_format(tmp_path: Path, zone: Any) -> None:
    begin = datetime(2026, 1, 1, tzinfo=zone)
    times = [begin + timedelta(hours=i * 37 % NUM_ROWS, microseconds=i) for i in range(NUM_ROWS)]
    split = {"by": "time", "column": "at"}
    parts = [{**token_columns(NUM_ROWS), "at": times}]
    assert_same_samples(lambda source: token_config(source, split=split), parts, tmp_path)


def test_a_split_that_is_given_and_one_by_whole_numbers_of_time_are_the_same_in_every_format(tmp_path: Path) -> None:
    columns = {
        **token_columns(NUM_ROWS),
        "part": [("train", "train", "dev", "test")[i // 3 % 4] for i in range(NUM_ROWS)],
        "fold": [i // 7 % 5 for i in range(NUM_ROWS)],
        "year": [1990 + i % 37 for i in range(NUM_ROWS)],
    }
    folds = {"train_values": [0, 1, 2], "validation_values": [3], "test_values": [4]}
    splits = [
        {"by": "given", "column": "part"},
        {"by": "given", "column": "fold", **folds},
        {"by": "time", "column": "year"},
    ]
    for index, split in enumerate(splits):
        make_config = partial(token_config, split=split)
        assert_same_samples(make_config, [columns], tmp_path / str(index))


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_ids_and_categories_keep_their_zeros_also_where_a_number_came_first(tmp_path: Path, kind: str) -> None:
    columns = text_columns(60)
    columns["sample_id"] = [f"{i:03d}" for i in range(60)]
    columns["region"] = ["12", "007", "7", "1.0", "1e3"] * 12
    source = write_table(tmp_path / f"a.{kind}", columns)
    store, manifest = prepared(text_config(source, categorical=["region"]), tmp_path)
    assert set(read_rows(store, manifest)) == set(columns["sample_id"])
    assert set(manifest.categorical[0].vocabulary) == {"12", "007", "7", "1.0", "1e3"}


def test_every_type_of_arrow_that_a_parquet_file_may_have_is_taken(tmp_path: Path) -> None:
    columns = text_columns(200)
    numbers = [Decimal(i) / 4 for i in range(200)]
    columns |= {
        "text": pa.array(columns["text"], pa.string_view()),
        "domain": pa.array(columns["domain"], pa.large_string()).dictionary_encode(),
        "region": columns["region"].dictionary_encode(),
        "length": pa.array(numbers, pa.decimal128(9, 2)),
        "score": pa.array(range(200), pa.uint64()),
        "half": pa.array([0.5] * 200, pa.float16()),
        "day": pa.array([date(2026, 1, 1) + timedelta(days=i) for i in range(200)], pa.date32()),
    }
    changes = METADATA | {"numeric": ["length", "score", "half"], "split": {"by": "time", "column": "day"}}
    assert_same_samples(partial(text_config, **changes), [columns], tmp_path, ["feather"])


def test_the_digest_is_over_the_bytes_of_the_source_and_the_same_rows_are_prepared_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_table(tmp_path / "a.csv", text_columns(90))
    config = text_config(source)
    store, manifest = prepared(config, tmp_path)
    assert manifest.inputs["files"] == [{"name": "a.csv", "sha256": sha256_of_file(source)}]
    assert digest_of(inputs_of(config, tmp_path)) == manifest.digest
    monkeypatch.setattr("tasks.data.units.reading.convert_file", lambda *_: pytest.fail("read again"))
    assert prepare_dataset(config, store, tmp_path / "scratch") == manifest


def test_neither_the_size_of_a_batch_nor_that_of_the_limit_changes_a_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_table(tmp_path / "a.csv", text_columns(NUM_ROWS))
    whole = prepared(text_config(source, **METADATA), tmp_path / "whole")[1]
    monkeypatch.setattr(conversion, "BATCH_BYTES", 700)
    assert prepared(text_config(source, memory_limit="300MB", **METADATA), tmp_path / "cut")[1] == whole


def test_what_each_value_means_in_json_is_what_it_means_in_parquet(tmp_path: Path) -> None:
    rows = [
        {
            "sample_id": i if i % 2 else f"s{i}",
            "text": "a text \U0001f642",
            "domain": i % 3,
            "length": [1, 2.5, True, None, float("nan")][i % 5],
            "region": [3, 3.0, True, "x", None, float("nan"), 2.5][i % 7],
        }
        for i in range(105)
    ]
    source = tmp_path / "a.jsonl"
    source.write_text("\ufeff" + "\n\n".join(json.dumps(row) for row in rows))
    config = text_config(source, numeric=["length"], categorical=["region"], max_missing_fraction=0.5)
    store, manifest = prepared(config, tmp_path)
    assert set(read_rows(store, manifest)) == {str(row["sample_id"]) for row in rows}
    assert manifest.target.classes == ["0", "1", "2"]
    assert manifest.categorical[0].vocabulary[0] == "3"
    assert set(manifest.categorical[0].vocabulary) == {"3", "true", "x", "2.5"}


def test_a_source_that_is_read_row_by_row_is_told_with_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "BATCH_ROWS", 100)
    told: list[tuple[str, float]] = []
    config = text_config(write_table(tmp_path / "a.csv", text_columns(NUM_ROWS)))
    prepare_dataset(config, LocalStore(tmp_path / "store"), tmp_path / "scratch", lambda *report: told.append(report))
    assert list(dict.fromkeys(phase for phase, _ in told)) == [
        "fingerprint",
        "read",
        "check",
        "learn",
        "tokenise",
        "shard",
    ]
    shares = [share for phase, share in told if phase == "read"]
    assert shares == sorted(shares) and shares[-1] == 1.0 and len(shares) == 4
