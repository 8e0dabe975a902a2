"""From a user's Parquet to a published data set: what is in it, and that it is the same every time."""

import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.datasets import (
    DATASET_FORMAT,
    DatasetManifest,
    dataset_key,
    find_dataset,
    publish_dataset,
)
from storage.errors import IncompatibleRunError
from storage.objects.digests import digest_of, sha256_of_bytes, sha256_of_file
from storage.objects.local_store import LocalStore
from tasks.data import pipeline
from tasks.data.identity.fingerprints import describe_change
from tasks.data.pipeline import prepare_dataset
from tasks.data.shard import COMPRESSION, SHARD_SCHEMA
from tasks.data.tokenizer import PADDING_INDEX, load_tokenizer
from tasks.data.units import opening
from tests.helpers.parquet import (
    inputs_of,
    read_rows,
    read_split,
    text_columns,
    text_config,
    token_columns,
    token_config,
    write_parquet,
)

METADATA: dict[str, Any] = {"numeric": ["length", "score"], "categorical": ["region"]}
NUM_ROWS = 900
ODD = '{} "of" the user\'s'


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files, with row groups of three sizes, in a folder whose name needs quoting everywhere."""
    folder = tmp_path_factory.mktemp("data") / "user's [data] * 100%"
    for part, row_group_rows in enumerate((7, 100, None)):
        write_parquet(folder / f"part-{part}.parquet", text_columns(300, first=300 * part), row_group_rows)
    return folder


@pytest.fixture(scope="module")
def prepared(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalStore, DatasetManifest]:
    root = tmp_path_factory.mktemp("store")
    store = LocalStore(root / "store")
    return store, prepare_dataset(text_config(source, **METADATA), store, root / "scratch")


def user_rows() -> dict[str, dict[str, Any]]:
    rows = pa.table(text_columns(NUM_ROWS)).to_pylist()
    return {row["sample_id"]: row for row in rows}


def shard_hashes(manifest: DatasetManifest) -> dict[str, str]:
    return {shard.name: shard.sha256 for split in manifest.splits.values() for shard in split.shards}


def test_every_row_is_in_exactly_one_split_with_its_label(prepared: tuple[LocalStore, DatasetManifest]) -> None:
    store, manifest = prepared
    rows = read_rows(store, manifest)
    assert sum(split.num_rows for split in manifest.splits.values()) == NUM_ROWS == len(rows)
    labels = {id_: manifest.target.classes[row["label"]] for id_, row in rows.items()}
    assert labels == {id_: row["domain"] for id_, row in user_rows().items()}
    train = [row for row in rows.values() if row["split"] == "train"]
    counted = [sum(row["label"] == i for row in train) for i in range(3)]
    assert manifest.target.class_counts == counted
    for name, split in manifest.splits.items():
        labels_of_split = [row["label"] for row in rows.values() if row["split"] == name]
        assert split.class_counts == [labels_of_split.count(i) for i in range(3)]
    assert 0.7 < len(train) / NUM_ROWS < 0.9


def test_shards_have_the_schema_the_exact_sizes_and_the_hashes_that_the_manifest_states(
    prepared: tuple[LocalStore, DatasetManifest],
) -> None:
    store, manifest = prepared
    for name, split in manifest.splits.items():
        for index, shard in enumerate(split.shards):
            path = store.fetch(dataset_key(manifest.digest, shard.name))
            assert (sha256_of_file(path), path.stat().st_size) == (shard.sha256, shard.num_bytes)
            file = pq.ParquetFile(path)
            assert file.schema_arrow.equals(SHARD_SCHEMA)
            sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            last_shard = index == len(split.shards) - 1
            assert all(size == 16 for size in (sizes[:-1] if last_shard else sizes))
            assert shard.num_rows == sum(sizes) == (sum(sizes) if last_shard else 64)
        rows = read_split(store, manifest, name)
        lengths = [len(tokens) for tokens in rows.column("tokens").to_pylist()]
        assert rows.column("length").to_pylist() == lengths
        assert split.num_tokens == sum(lengths)
    assert len(manifest.splits["train"].shards) > 5


def test_tokens_are_the_text_again_and_the_tokenizer_is_part_of_the_data_set(
    prepared: tuple[LocalStore, DatasetManifest],
) -> None:
    store, manifest = prepared
    assert manifest.tokenizer is not None
    path = store.fetch(dataset_key(manifest.digest, manifest.tokenizer.name))
    assert sha256_of_file(path) == manifest.tokenizer.sha256
    tokenizer = load_tokenizer(path)
    assert tokenizer.get_vocab_size() == manifest.vocabulary_size <= 300
    user = user_rows()
    for id_, row in read_rows(store, manifest).items():
        assert PADDING_INDEX not in row["tokens"]
        assert max(row["tokens"]) < manifest.vocabulary_size
        assert tokenizer.decode(row["tokens"]).strip() == user[id_]["text"]


def test_statistics_come_from_the_training_split_and_missing_values_are_imputed_and_flagged(
    prepared: tuple[LocalStore, DatasetManifest],
) -> None:
    store, manifest = prepared
    rows, user = read_rows(store, manifest), user_rows()
    train = [id_ for id_, row in rows.items() if row["split"] == "train"]
    for index, column in enumerate(manifest.numeric):
        found = {id_: row[column.name] for id_, row in user.items()}
        there = {id_: value for id_, value in found.items() if value is not None and value == value}
        values = [there[id_] for id_ in train if id_ in there]
        assert column.mean == pytest.approx(fmean(values))
        assert column.standard_deviation == pytest.approx(pstdev(values))
        assert column.median == pytest.approx(median(values))
        assert column.missing_share == pytest.approx(1 - len(values) / len(train))
        for id_, row in rows.items():
            scaled = (there.get(id_, column.median) - column.mean) / column.standard_deviation
            assert row["numeric"][index] == pytest.approx(scaled, abs=1e-6)
            assert row["missing"][index] == (id_ not in there)


def test_categories_are_indexed_by_frequency_in_the_training_split(tmp_path: Path) -> None:
    columns = text_columns(400)
    # The newest rows, which a split by time keeps from training, are the only ones with this value.
    regions = [None if i % 9 == 0 else "new" if i > 370 else "a" if i % 4 else "b" for i in range(400)]
    columns["region"] = regions
    columns["created_at"] = [datetime(2026, 1, 1) + timedelta(minutes=i) for i in range(400)]
    source = write_parquet(tmp_path / "a.parquet", columns)
    store = LocalStore(tmp_path / "store")
    config = text_config(source, categorical=["region"], split={"by": "time", "column": "created_at"})
    manifest = prepare_dataset(config, store, tmp_path / "scratch")
    assert manifest.categorical[0].vocabulary == ["a", "b"]
    index = {None: 0, "new": 1, "a": 2, "b": 3}
    for id_, row in read_rows(store, manifest).items():
        assert row["categorical"] == [index[regions[int(id_[1:])]]]


def test_the_same_inputs_are_never_prepared_twice(
    prepared: tuple[LocalStore, DatasetManifest], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, manifest = prepared
    monkeypatch.setattr(pipeline, "require_rules_kept", lambda *_: pytest.fail("prepared again"))
    config = text_config(source, **METADATA)
    assert prepare_dataset(config.model_copy(update={"memory_limit": "1GB"}), store, tmp_path) == manifest
    assert digest_of(inputs_of(config, tmp_path)) == manifest.digest
    assert describe_change(manifest, inputs_of(config, tmp_path)) == []


@pytest.mark.parametrize("other", [DATASET_FORMAT - 1, DATASET_FORMAT + 1])
def test_a_data_set_of_another_format_is_refused_and_not_called_damaged(
    prepared: tuple[LocalStore, DatasetManifest], tmp_path: Path, other: int
) -> None:
    store = LocalStore(tmp_path / "store")
    publish_dataset(store, prepared[1].model_copy(update={"format": other}))
    with pytest.raises(IncompatibleRunError, match=f"has format {other}, this version of Holdfast reads"):
        find_dataset(store, prepared[1].digest)


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("part", ["assign", "shard"])
def test_of_two_preparations_with_other_libraries_the_second_takes_what_the_first_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, is_large: bool
) -> None:
    """A run may train on it by then: another codec stands for another version, which writes other bytes."""
    if is_large:
        monkeypatch.setattr(opening, "SMALL_SOURCE_BYTES", 0)
    config = text_config(write_parquet(tmp_path / "data.parquet", text_columns(300)))
    store, first = LocalStore(tmp_path / "store"), []

    def run_part(name: str, work: Callable[[], tuple[Any, str]]) -> Any:
        if name != part:
            return work()[0]
        if part == "shard":
            value = work()[0]  # its shards are in the store: the other one finds them
            first.append(publish_first())
            return value
        first.append(publish_first())
        return work()[0]

    def publish_first() -> tuple[DatasetManifest, dict[str, bytes]]:
        with monkeypatch.context() as patch:
            patch.setitem(COMPRESSION, "id", "snappy")
            patch.setattr(opening, "version", lambda _: "another")
            manifest = prepare_dataset(config, store, tmp_path / "first")
        return manifest, content_of(store)

    found = prepare_dataset(config, store, tmp_path / "second", run_part=run_part)
    ((manifest, content),) = first
    assert found == manifest
    assert set(manifest.versions.values()) == {"another"}
    assert content_of(store) == content
    files = [shard for split in manifest.splits.values() for shard in split.shards]
    assert manifest.tokenizer is not None and manifest.contract is not None
    for file in (*files, manifest.tokenizer, manifest.contract):
        assert sha256_of_bytes(content[dataset_key(manifest.digest, file.name)]) == file.sha256
    assert len(content) == len(files) + 3
    assert not list(store.list_keys("preparations/"))


def content_of(store: LocalStore) -> dict[str, bytes]:
    return {key: store.read(key) for key in store.list_keys("datasets/")}


def test_a_published_data_set_is_found_without_importing_great_expectations(
    prepared: tuple[LocalStore, DatasetManifest], source: Path, tmp_path: Path
) -> None:
    store, manifest = prepared
    code = (
        "import sys; from pathlib import Path; from storage.objects.local_store import LocalStore; "
        "from tasks.configuration.run import DataConfig; from tasks.data.pipeline import prepare_dataset; "
        "config = DataConfig.model_validate_json(sys.argv[1]); "
        "print(prepare_dataset(config, LocalStore(Path(sys.argv[2])), Path(sys.argv[3])).digest); "
        "assert 'great_expectations' not in sys.modules"
    )
    config = text_config(source, **METADATA).model_dump_json()
    command = [sys.executable, "-c", code, config, store.address, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == manifest.digest


@pytest.mark.parametrize("threads", [1, 5])
def test_neither_threads_nor_memory_change_a_byte(
    prepared: tuple[LocalStore, DatasetManifest],
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
) -> None:
    connect = duckdb.connect
    monkeypatch.setattr(duckdb, "connect", lambda: connect(config={"threads": threads}))
    config = text_config(source, memory_limit=f"{threads * 200}MB", **METADATA)
    manifest = prepare_dataset(config, LocalStore(tmp_path / "store"), tmp_path / "scratch")
    assert manifest == prepared[1]


def test_how_the_rows_are_assigned_out_to_files_changes_nothing_but_the_digest(
    prepared: tuple[LocalStore, DatasetManifest], tmp_path: Path
) -> None:
    rows = pa.table(text_columns(NUM_ROWS))
    path = tmp_path / "all.parquet"
    pq.write_table(rows.take(list(reversed(range(NUM_ROWS)))), path, row_group_size=50)
    manifest = prepare_dataset(text_config(path), LocalStore(tmp_path / "one"), tmp_path / "scratch")
    pq.write_table(rows, path)
    again = prepare_dataset(text_config(path), LocalStore(tmp_path / "two"), tmp_path / "scratch")
    assert again.digest != manifest.digest
    assert shard_hashes(again) == shard_hashes(manifest)


def test_another_seed_deals_and_orders_the_rows_differently(
    prepared: tuple[LocalStore, DatasetManifest], source: Path, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path / "store")
    other = prepare_dataset(text_config(source, seed=1), store, tmp_path / "scratch")
    first_ids = read_split(*prepared, "train").column("id").to_pylist()
    other_ids = read_split(store, other, "train").column("id").to_pylist()
    assert first_ids != sorted(first_ids)
    assert set(first_ids) != set(other_ids)
    both = set(first_ids) & set(other_ids)
    assert [id_ for id_ in first_ids if id_ in both] != [id_ for id_ in other_ids if id_ in both]


def test_tokens_pass_through_without_what_the_mask_hides(tmp_path: Path) -> None:
    columns = token_columns(300)
    source = write_parquet(tmp_path / "a.parquet", columns)
    store = LocalStore(tmp_path / "store")
    manifest = prepare_dataset(token_config(source), store, tmp_path / "scratch")
    assert (manifest.tokenizer, manifest.vocabulary_size, manifest.target.classes) == (None, 1000, ["false", "true"])
    for id_, row in read_rows(store, manifest).items():
        padded = columns["input_ids"][int(id_)].as_py()
        assert row["tokens"] == [token for token in padded if token != 0]
        assert row["label"] == columns["label"][int(id_)]
        assert (row["numeric"], row["missing"], row["categorical"]) == ([], [], [])


@pytest.mark.parametrize("job", ["text", "tokens"])
def test_longer_rows_are_cut_when_the_configuration_says_so(tmp_path: Path, job: str) -> None:
    if job == "text":
        source = write_parquet(tmp_path / "a.parquet", text_columns(300))
        config = text_config(source, max_tokens=4, too_long="truncate")
    else:
        source = write_parquet(tmp_path / "a.parquet", token_columns(300))
        config = token_config(source, max_tokens=4, too_long="truncate")
    store = LocalStore(tmp_path / "store")
    rows = read_rows(store, prepare_dataset(config, store, tmp_path / "scratch"))
    assert len(rows) == 300
    assert max(len(row["tokens"]) for row in rows.values()) == 4


def test_rows_of_one_value_of_the_split_column_stay_together(tmp_path: Path) -> None:
    columns = token_columns(600)
    source = write_parquet(tmp_path / "a.parquet", columns)
    store = LocalStore(tmp_path / "store")
    config = token_config(
        source, split={"by": "column", "column": "shard_id", "test_fraction": 0.2, "validation_fraction": 0.2}
    )
    rows = read_rows(store, prepare_dataset(config, store, tmp_path / "scratch"))
    splits: dict[int, set[str]] = {}
    for id_, row in rows.items():
        splits.setdefault(columns["shard_id"][int(id_)], set()).add(row["split"])
    assert all(len(found) == 1 for found in splits.values())
    assert set().union(*splits.values()) == {"train", "validation", "test"}


def test_a_split_by_time_is_exact_and_keeps_rows_of_one_time_together(tmp_path: Path) -> None:
    columns = text_columns(200)
    hours = [i // 3 for i in range(200)]
    columns["created_at"] = [datetime(2026, 1, 1) + timedelta(hours=hour) for hour in hours]
    source = write_parquet(tmp_path / "a.parquet", columns)
    store = LocalStore(tmp_path / "store")
    config = text_config(source, split={"by": "time", "column": "created_at"})
    rows = read_rows(store, prepare_dataset(config, store, tmp_path / "scratch"))
    found = {split: {hours[int(id_[1:])] for id_, row in rows.items() if row["split"] == split} for split in
             ("train", "validation", "test")}  # fmt: skip
    # Row 180 is the oldest of the newest 20 and shares hour 60 with nobody older; row 160 shares hour 53 with row 159.
    assert min(found["test"]) == hours[180]
    assert min(found["validation"]) == hours[160]
    assert max(found["train"]) == hours[160] - 1
    assert max(found["validation"]) == hours[180] - 1


def test_rows_without_ids_are_numbered_by_file_and_row(tmp_path: Path) -> None:
    for part in range(2):
        columns = text_columns(100, first=100 * part)
        del columns["sample_id"]
        write_parquet(tmp_path / "data" / f"{part}.parquet", columns)
    store = LocalStore(tmp_path / "store")
    rows = read_rows(store, prepare_dataset(text_config(tmp_path / "data", id=None), store, tmp_path / "scratch"))
    assert set(rows) == {f"{part}:{row}" for part in range(2) for row in range(100)}
    assert rows["1:7"]["label"] == 107 % 3


def test_columns_with_quotes_and_spaces_in_their_names_are_read(tmp_path: Path) -> None:
    columns = text_columns(200)
    odd = {ODD.format(name): column for name, column in columns.items()}
    source = write_parquet(tmp_path / "a.parquet", odd)
    named = {"id": "sample_id", "text": "text", "label": "domain"}
    renamed = {key: ODD.format(name) for key, name in named.items()}
    lists = {"numeric": [ODD.format("length")], "categorical": [ODD.format("region")]}
    store = LocalStore(tmp_path / "store")
    manifest = prepare_dataset(text_config(source, **renamed, **lists), store, tmp_path / "scratch")
    assert manifest.numeric[0].name == ODD.format("length")
    assert len(read_rows(store, manifest)) == 200


def test_a_column_that_is_whole_in_one_file_and_has_gaps_in_another_is_one_column(tmp_path: Path) -> None:
    first, second, third = (text_columns(100, first=100 * i) for i in range(3))
    first["code"] = pa.array([i % 3 for i in range(100)], pa.int64())
    second["code"] = pa.array([float("nan") if i == 0 else float(i % 3) for i in range(100)], pa.float64())
    third["code"] = pa.array([0] * 100, pa.int8())
    third["length"] = pa.nulls(100)
    for index, columns in enumerate((first, second, third)):
        write_parquet(tmp_path / "data" / f"{index}.parquet", columns)
    store = LocalStore(tmp_path / "store")
    config = text_config(tmp_path / "data", categorical=["code"], numeric=["length"], max_missing_fraction=0.5)
    manifest = prepare_dataset(config, store, tmp_path / "scratch")
    assert manifest.categorical[0].vocabulary == ["0", "1", "2"]


def test_a_text_that_spells_the_padding_token_has_no_padding_in_it(tmp_path: Path) -> None:
    columns = text_columns(200)
    columns["text"] = [f"[PAD] {text} \N{SNOWMAN} é" for text in columns["text"]]
    source = write_parquet(tmp_path / "a.parquet", columns)
    store = LocalStore(tmp_path / "store")
    rows = read_rows(store, prepare_dataset(text_config(source), store, tmp_path / "scratch"))
    assert all(PADDING_INDEX not in row["tokens"] for row in rows.values())


def test_progress_is_told_phase_by_phase_up_to_the_whole(source: Path, tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    prepare_dataset(
        text_config(source), LocalStore(tmp_path / "store"), tmp_path, lambda phase, share: told.append((phase, share))
    )
    assert list(dict.fromkeys(phase for phase, _ in told)) == ["fingerprint", "check", "learn", "tokenise", "shard"]
    for phase in ("fingerprint", "check", "learn", "tokenise", "shard"):
        shares = [share for name, share in told if name == phase]
        assert shares == sorted(shares)
        assert shares[-1] == 1.0
