"""Cutting ordered rows into row groups and shards of exact size, and putting them where something may lie already."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from storage.datasets import SPLITS, dataset_key
from storage.errors import CorruptObjectError
from storage.objects.digests import sha256_of_bytes, sha256_of_file
from storage.objects.local_store import LocalStore
from tasks.data.shard import ordered_sql, put_again, write_shards
from tasks.data.tokenizer import encode_texts, train_tokenizer
from tests.helpers.parquet import text_config

SCHEMA = pa.schema(
    {
        "split": pa.int32(),
        "id": pa.string(),
        "label": pa.int32(),
        "tokens": pa.list_(pa.int32()),
        "numeric": pa.list_(pa.float32()),
        "missing": pa.list_(pa.float32()),
        "categorical": pa.list_(pa.int32()),
    }
)


def ordered_rows(sizes: list[int]) -> list[dict[str, Any]]:
    """Rows of three splits, one after the other; row i has i % 4 + 1 tokens."""
    splits = [split for split, size in enumerate(sizes) for _ in range(size)]
    return [
        {"split": split, "id": str(i), "label": i % 2, "tokens": [i] * (i % 4 + 1)}
        | {"numeric": [i / 2], "missing": [0.0], "categorical": [i % 3]}
        for i, split in enumerate(splits)
    ]


def reader_of(rows: list[dict[str, Any]], batch_rows: int) -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(rows), batch_rows):
            # A slice with rows before it: as DuckDB's batches may be, and as careless code gets wrong.
            padded = pa.RecordBatch.from_pylist([rows[0], *rows[start : start + batch_rows]], schema=SCHEMA)
            yield padded.slice(1)

    return pa.RecordBatchReader.from_batches(SCHEMA, batches())


@pytest.mark.parametrize("num_rows", [[30, 5, 6], [30, 5, 4]])
def test_rows_that_were_lost_or_doubled_are_an_error_that_optimised_python_has_too(
    tmp_path: Path, num_rows: list[int]
) -> None:
    """An `assert` is left out by `python -O`."""
    reader = reader_of(ordered_rows([30, 5, 5]), 8)
    with pytest.raises(CorruptObjectError, match=rf"train 30 of 30, validation 5 of 5, test 5 of {num_rows[2]}\. The"):
        write_shards(reader, LocalStore(tmp_path / "store"), "d" * 64, text_config("source"), tmp_path, num_rows)


@settings(max_examples=12, deadline=None)
@given(sizes=st.lists(st.integers(1, 70), min_size=3, max_size=3), batch_rows=st.integers(1, 90))
def test_shards_hold_every_row_once_in_order_however_the_rows_arrive(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], batch_rows: int
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    store, rows = LocalStore(folder / "store"), ordered_rows(sizes)
    config = text_config("unused", row_group_rows=8, shard_rows=24)
    splits = write_shards(reader_of(rows, batch_rows), store, "digest", config, folder, sizes)
    for split, (name, size) in enumerate(zip(SPLITS, sizes, strict=True)):
        expected = [
            {key: row[key] for key in SCHEMA.names[1:]} | {"length": len(row["tokens"])}
            for row in rows
            if row["split"] == split
        ]
        tables, groups = [], []
        for shard in splits[name].shards:
            file = pq.ParquetFile(store.fetch(dataset_key("digest", shard.name)))
            groups += [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            tables.append(file.read())
        assert pa.concat_tables(tables).to_pylist() == expected
        assert groups == [8] * (size // 8) + [size % 8] * (size % 8 > 0)
        assert [shard.num_rows for shard in splits[name].shards[:-1]] == [24] * (len(tables) - 1)
        assert splits[name].num_tokens == sum(len(row["tokens"]) for row in expected)
    assert not list(folder.glob("*.parquet"))


def test_the_bytes_of_a_shard_do_not_depend_on_how_the_rows_arrive(tmp_path: Path) -> None:
    sizes, config = [50, 30, 20], text_config("unused", row_group_rows=8, shard_rows=24)
    hashes = [
        write_shards(
            reader_of(ordered_rows(sizes), batch_rows),
            LocalStore(tmp_path / str(batch_rows)),
            "d",
            config,
            tmp_path,
            sizes,
        )
        for batch_rows in (1, 7, 1000)
    ]
    assert hashes[0] == hashes[1] == hashes[2]


def test_the_order_is_a_function_of_seed_and_id_alone() -> None:
    rows = "SELECT 0 AS split, i::VARCHAR AS id, 0 AS label, [1] AS tokens, [] numeric, [] missing, [] categorical"

    def ids(seed: int, order: str, threads: int) -> list[str]:
        with duckdb.connect(config={"threads": threads}) as connection:
            query = ordered_sql(f"{rows} FROM (SELECT i FROM range(4000) t(i) ORDER BY {order})", seed)
            return [row[1] for row in connection.execute(query).fetchall()]

    first = ids(0, "i", 1)
    assert ids(0, "i DESC", 4) == first
    assert ids(1, "i", 1) != first
    # The definition itself, without DuckDB: a later version of it must give the same order.
    assert first == sorted(first, key=lambda id_: (low_md5(f"order:0:{id_}"), id_))
    assert set(first) == {str(i) for i in range(4000)}


def low_md5(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode()).digest()[8:], "little")


def test_what_an_interrupted_preparation_left_is_kept_if_equal_and_replaced_if_not(tmp_path: Path) -> None:
    store, path = LocalStore(tmp_path / "store"), tmp_path / "shard"
    path.write_bytes(b"right")
    store.write("key", b"wrong")
    put_again(store, path, "key", sha256_of_bytes(b"right"))
    assert store.read("key") == b"right"
    inode = store.fetch("key").stat().st_ino
    other = tmp_path / "again"
    other.write_bytes(b"right")
    put_again(store, other, "key", sha256_of_file(other))
    assert store.fetch("key").stat().st_ino == inode


def test_the_tokenizer_is_the_same_bytes_for_the_same_texts_in_any_order() -> None:
    texts = [f"{word} {i % 7}" for i, word in enumerate(["hello", "world", "help", "wordy"] * 25)]
    assert train_tokenizer(iter(texts), 300).to_str() == train_tokenizer(reversed(texts), 300).to_str()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(["hello world"], 280)


@given(texts=st.lists(st.text(), max_size=5))
@settings(max_examples=20, deadline=None)
def test_any_text_is_encoded_without_loss_and_without_padding(tokenizer: Tokenizer, texts: list[str]) -> None:
    lists = encode_texts(tokenizer, texts).to_pylist()
    assert [tokenizer.decode(ids).removeprefix(" ") for ids in lists] == [text.removeprefix(" ") for text in texts]
    assert all(0 < token < 280 for ids in lists for token in ids)
