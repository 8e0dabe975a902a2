"""From assigned rows to shards of exact size, in the order of the rows, and put where something may lie already."""

import hashlib
import tracemalloc
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from storage.datasets import GROUP_HASHES_KEY, SPLITS, SplitRecord, dataset_key
from storage.errors import CorruptObjectError
from storage.objects.local_store import LocalStore
from tasks.data.tokenizer import encode_texts, shortened, train_tokenizer
from tasks.data.units.bucket_files import PART, TABLE_NAME, gather_tables, part_schema, parts_name, write_parts
from tasks.data.units.records import read_records, unit_name
from tasks.data.units.sharding import require_all_rows, shard_units, splits_in
from tasks.data.units.staging import FolderStaging, Record, put_again
from tasks.data.units.work import STAGES, do_unit
from tasks.data.units.workspace import Workspace, settings_name
from tests.helpers.parquet import text_config
from training.data.footers import range_of

VOCABULARY_SIZE = 100_000
SOME_BYTES = 200  # of the tables of parts, so that they are gathered a few buckets at a time
CONFIG = text_config("unused", row_group_rows=8, shard_rows=24, numeric=["a", "b"], categorical=["c"])
SCHEMA = pa.schema([pa.field("split", pa.int32()), *part_schema(CONFIG, VOCABULARY_SIZE)])


def rows_of(sizes: list[int], same_order_key: bool = False) -> list[dict[str, Any]]:
    """Rows of three splits as a unit assigns them; row i has i % 4 + 1 tokens."""
    splits = [split for split, size in enumerate(sizes) for _ in range(size)]
    return [
        {"split": split, "id": str(i), "label": i % 2, "tokens": [i] * (i % 4 + 1)}
        | {"numeric0": i / 2, "numeric1": float(-i), "missing0": 0.0, "missing1": i % 2.0, "categorical0": i % 3}
        | {"order_key": 7 if same_order_key else low_md5(f"order:0:{i}")}
        for i, split in enumerate(splits)
    ]


def low_md5(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode()).digest()[8:], "little")


def write_shards(
    folder: Path,
    rows: list[dict[str, Any]],
    sizes: list[int],
    chunk_rows: int,
    bucket_bits: list[int],
    num_together: int = 1,
) -> tuple[LocalStore, dict[str, SplitRecord], Workspace]:
    """Assign rows in chunks of this size, and write all shards from them."""
    folder.mkdir(parents=True, exist_ok=True)
    store, staging = LocalStore(folder / "store"), FolderStaging(folder / "staging")
    chunks = [rows[start : start + chunk_rows] for start in range(0, len(rows), chunk_rows)]
    tables = []
    for index, chunk in enumerate(chunks):
        # A slice with rows before it: as batches may be, and as careless code gets wrong.
        table = pa.Table.from_pylist([rows[0], *chunk], schema=SCHEMA).slice(1)
        tables.append(write_parts(table, bucket_bits, folder / "parts"))
        staging.keep(unit_name("assign", index), {"table": tables[-1]}, {parts_name(index): folder / "parts"})
    buckets = gather_tables(staging, tables, bucket_bits, folder / TABLE_NAME, SOME_BYTES)
    assert buckets.rows_of_splits == sizes
    settings: Record = {"digest": "digest", "num_rows": sizes, "buckets": asdict(buckets)}
    settings |= {"vocabulary_size": VOCABULARY_SIZE, "num_together": num_together}
    staging.keep(settings_name("shard"), settings, {TABLE_NAME: folder / TABLE_NAME})
    workspace = Workspace(CONFIG, store, staging, folder, folder, [])
    units = shard_units(sizes, num_together, CONFIG)
    for index in range(len(units)):
        do_unit(workspace, "shard", index)
    return store, splits_in(read_records(staging, "shard", len(units)), units, sizes), workspace


@pytest.mark.parametrize("num_rows", [[30, 5, 6], [30, 5, 4]])
def test_rows_that_were_lost_or_doubled_are_an_error_that_optimised_python_has_too(num_rows: list[int]) -> None:
    """An `assert` is left out by `python -O`."""
    with pytest.raises(CorruptObjectError, match=rf"train 30 of 30, validation 5 of 5, test 5 of {num_rows[2]}\. The"):
        require_all_rows([30, 5, 5], num_rows)


@settings(max_examples=12, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 70), min_size=3, max_size=3),
    chunk_rows=st.integers(1, 90),
    bucket_bits=st.lists(st.integers(0, 4), min_size=3, max_size=3),
    num_together=st.integers(1, 4),
    order=st.randoms(use_true_random=False),
)
def test_shards_hold_every_row_once_in_the_order_of_their_places_wherever_the_rows_were(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    chunk_rows: int,
    bucket_bits: list[int],
    num_together: int,
    order: Random,
) -> None:
    folder, rows = tmp_path_factory.mktemp("shards"), rows_of(sizes)
    order.shuffle(rows)
    store, splits, _ = write_shards(folder, rows, sizes, chunk_rows, bucket_bits, num_together)
    for split, (name, size) in enumerate(zip(SPLITS, sizes, strict=True)):
        expected = [
            {"id": row["id"], "label": row["label"]}
            | {"tokens": np.array(row["tokens"], np.int32).tobytes(), "length": len(row["tokens"])}
            | {"numeric": [row["numeric0"], row["numeric1"]], "missing": [row["missing0"], row["missing1"]]}
            | {"categorical": [row["categorical0"]]}
            for row in sorted(rows, key=lambda row: (row["order_key"], row["id"]))
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
        assert splits[name].num_tokens == sum(row["length"] for row in expected)
    assert not list(folder.glob("*.parquet"))


def test_a_shard_is_described_by_hashes_of_all_of_it_its_footer_and_its_row_groups(tmp_path: Path) -> None:
    sizes = [50, 30, 20]
    store, splits, _ = write_shards(tmp_path, rows_of(sizes), sizes, 7, [3, 1, 0])
    for shard in (shard for split in splits.values() for shard in split.shards):
        content = store.read(dataset_key("digest", shard.name))
        assert shard.name.endswith(f"-{shard.sha256[:16]}.parquet")
        assert (len(content), hashlib.sha256(content).hexdigest()) == (shard.num_bytes, shard.sha256)
        footer_bytes = 8 + int.from_bytes(content[-8:-4], "little")
        assert hashlib.sha256(content[-footer_bytes:]).hexdigest() == shard.footer_sha256
        metadata = pq.read_metadata(pa.BufferReader(content))
        ranges = [range_of(metadata.row_group(index)) for index in range(metadata.num_row_groups)]
        assert (ranges[0][0], ranges[-1][1]) == (len(b"PAR1"), len(content) - footer_bytes)
        hashes = "".join(hashlib.sha256(content[start:end]).hexdigest() for start, end in ranges)
        assert metadata.metadata[GROUP_HASHES_KEY].decode() == hashes


def test_neither_chunks_nor_buckets_nor_units_show_in_the_bytes_of_a_shard(tmp_path: Path) -> None:
    sizes = [50, 30, 20]
    splits = [
        write_shards(tmp_path / str(chunk_rows), rows_of(sizes), sizes, chunk_rows, bits, num_together)[1]
        for chunk_rows, bits, num_together in ((1, [0, 0, 0], 2), (7, [3, 1, 0], 1), (1000, [5, 0, 2], 9))
    ]
    assert splits[0] == splits[1] == splits[2]


def test_a_unit_that_is_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask asks for it when the worker is gone that did it."""
    sizes = [50, 30, 20]
    _, _, workspace = write_shards(tmp_path, rows_of(sizes), sizes, 40, [1, 0, 0])
    done: list[int] = []

    def note(_workspace: Workspace, index: int, _folder: Path) -> tuple[Record, dict[str, Path]]:
        done.append(index)
        return {}, {}

    monkeypatch.setitem(STAGES, "shard", note)
    do_unit(workspace, "shard", 0)
    assert done == []


def test_where_two_places_are_the_same_the_id_decides(tmp_path: Path) -> None:
    sizes = [40, 1, 1]
    store, splits, _ = write_shards(tmp_path, rows_of(sizes, same_order_key=True), sizes, 9, [4, 0, 0])
    keys = [dataset_key("digest", shard.name) for shard in splits["train"].shards]
    ids = [id_ for key in keys for id_ in pq.read_table(store.fetch(key)).column("id").to_pylist()]
    assert ids == sorted(map(str, range(40)))


class ReadRanges(FolderStaging):
    """Another view of a `FolderStaging`, which notes how many bytes of each file are read in ranges."""

    def __init__(self, staging: FolderStaging) -> None:
        vars(self).update(vars(staging))
        self.read: list[tuple[str, int]] = []

    def find(self, name: str) -> Record | None:
        self.read.append((name, 0))
        return super().find(name)

    def read_range(self, name: str, start: int, end: int) -> bytes:
        self.read.append((name, end - start))
        return super().read_range(name, start, end)


def test_a_unit_reads_of_the_table_of_parts_the_entries_of_its_own_buckets(tmp_path: Path) -> None:
    """The table has as many entries as chunks times buckets: in every process it would be most of the memory."""
    sizes = [256, 1, 1]
    _, _, workspace = write_shards(tmp_path, rows_of(sizes), sizes, 10, [6, 0, 0])
    assert isinstance(workspace.staging, FolderStaging)
    staging = ReadRanges(workspace.staging)
    STAGES["shard"](replace(workspace, staging=staging), 0, tmp_path)
    names = [name for name, _ in staging.read]
    assert unit_name("assign", 0) not in names and settings_name("shard") in names
    of_a_bucket = 26 * PART.itemsize  # an entry for each chunk
    assert {num_bytes for name, num_bytes in staging.read if name == TABLE_NAME} == {of_a_bucket}
    # 24 of 256 rows are in 6 of 64 buckets, more or less.
    assert 2 <= names.count(TABLE_NAME) <= 14


def test_tables_of_parts_are_gathered_in_the_memory_that_is_given(tmp_path: Path) -> None:
    bits, num_chunks = [10, 2, 2], 200
    staging, rows = FolderStaging(tmp_path / "staging"), pa.Table.from_pylist(rows_of([40, 1, 1]), schema=SCHEMA)
    table = write_parts(rows, bits, tmp_path / "parts")
    staging.keep(unit_name("assign", 0), {}, {parts_name(0): tmp_path / "parts"})
    for index in range(1, num_chunks):
        staging.fetch(parts_name(index)).hardlink_to(staging.fetch(parts_name(0)))
    most_bytes, whole = 1 << 18, num_chunks * (1024 + 8) * PART.itemsize
    peaks = []
    for attempt in range(3):  # threads that earlier tests left may take memory at the same moment
        tracemalloc.start()
        few = gather_tables(staging, [table] * num_chunks, bits, tmp_path / f"few-{attempt}", most_bytes)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert min(peaks) < 4 * most_bytes < whole / 4
    assert few.rows_of_splits == [40 * num_chunks, num_chunks, num_chunks]
    assert gather_tables(staging, [table] * num_chunks, bits, tmp_path / "all", whole) == few
    assert (tmp_path / "all").read_bytes() == (tmp_path / "few-0").read_bytes()


@pytest.mark.parametrize("name", [TABLE_NAME, parts_name(1)])
def test_damage_in_a_table_of_parts_is_an_error_that_says_which_file_and_what_to_do(tmp_path: Path, name: str) -> None:
    sizes = [50, 30, 20]
    _, _, workspace = write_shards(tmp_path, rows_of(sizes), sizes, 40, [1, 0, 0])
    path = workspace.staging.fetch(name)
    content = bytearray(path.read_bytes())
    content[-PART.itemsize * 2] ^= 4
    path.write_bytes(content)
    with pytest.raises(CorruptObjectError, match=rf"{name} is not what was written there.*Delete .*\.json and run"):
        if name == TABLE_NAME:
            for index in range(len(shard_units(sizes, 1, workspace.config))):
                STAGES["shard"](workspace, index, tmp_path)
        else:
            tables = [record["table"] for record in read_records(workspace.staging, "assign", 3)]
            gather_tables(workspace.staging, tables, [1, 0, 0], tmp_path / "again", SOME_BYTES)


@pytest.mark.parametrize("damage", ["a bit flips", "it is cut off", "it is gone"])
def test_damage_in_what_a_unit_left_is_an_error_that_says_which_file_and_what_to_do(
    tmp_path: Path, damage: str
) -> None:
    sizes = [50, 30, 20]
    _, _, workspace = write_shards(tmp_path, rows_of(sizes), sizes, 40, [1, 0, 0])
    path = workspace.staging.fetch(parts_name(1))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    if damage == "it is gone":
        path.unlink()
    else:
        path.write_bytes(content if damage == "a bit flips" else content[: len(content) // 3])
    with pytest.raises(CorruptObjectError, match=r"assign-000001\.parts is not what was written.*Delete .*1.json"):
        for index in range(len(shard_units(sizes, 1, workspace.config))):
            STAGES["shard"](workspace, index, tmp_path)


def test_what_an_interrupted_preparation_left_is_kept_if_equal_and_replaced_if_not(tmp_path: Path) -> None:
    store, path = LocalStore(tmp_path / "store"), tmp_path / "shard"
    path.write_bytes(b"right")
    store.write("key", b"wrong")
    put_again(store, path, "key")
    assert store.read("key") == b"right"
    inode = store.fetch("key").stat().st_ino
    other = tmp_path / "again"
    other.write_bytes(b"right")
    put_again(store, other, "key")
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


@given(words=st.lists(st.sampled_from(["hello", " ", "  ", "\n", "wörld", "hellohello", "a", "1,2"]), max_size=60))
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("max_tokens", [1, 3])
def test_of_a_long_text_the_beginning_alone_is_encoded_to_the_same_tokens(
    tokenizer: Tokenizer, words: list[str], max_tokens: int
) -> None:
    texts = ["".join(words)]
    whole = [ids[:max_tokens] for ids in encode_texts(tokenizer, texts).to_pylist()]
    assert shortened(tokenizer, texts, max_tokens).to_pylist() == whole
