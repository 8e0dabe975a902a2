"""Finding the user's files, knowing their bytes again, and saying what changed."""

import io
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.datasets import DatasetManifest, SplitRecord, Target
from storage.errors import ConfigurationError, ContractError
from storage.objects.digests import sha256_of_file, sha256_of_stream
from tasks.configuration.run import DataConfig
from tasks.data.identity import fingerprints as sources
from tasks.data.identity.fingerprints import describe_change, ensure_unchanged, fingerprint_files, read_inputs
from tasks.data.readers.check import check_columns
from tasks.data.sources.files import find_files
from tests.helpers.parquet import text_columns, text_config, write_parquet


def names(source: Path | str) -> list[str]:
    return [file.name for file in find_files(str(source))]


def set_age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_a_file_a_folder_and_a_glob_are_found_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b.parquet", "a.parquet", "deep/c.parquet"):
        write_parquet(tmp_path / name, text_columns(2))
    assert names(tmp_path / "b.parquet") == ["b.parquet"]
    assert names(tmp_path) == ["a.parquet", "b.parquet", "deep/c.parquet"]
    assert names(tmp_path / "*.parquet") == ["a.parquet", "b.parquet"]
    assert names(tmp_path / "**" / "*.parquet") == ["a.parquet", "b.parquet", "deep/c.parquet"]
    assert names(tmp_path / "**" / "**" / "*.parquet") == ["a.parquet", "b.parquet", "deep/c.parquet"]  # each once


def test_what_other_programs_leave_beside_the_data_is_not_read(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", text_columns(2))
    for name in ("_temporary/b.parquet", ".hidden.parquet", "_SUCCESS", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert names(tmp_path) == ["a.parquet"]


def test_the_names_of_files_say_their_format_in_upper_and_lower_case(tmp_path: Path) -> None:
    for name in ("a.CSV", "deep/b.csv.gz", ".hidden.csv", "_temporary/c.csv", "notes.txt", "d.json", "e.csv.bak"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"id\n")
    assert names(tmp_path) == ["a.CSV", "deep/b.csv.gz"]
    (tmp_path / "f.jsonl").write_bytes(b"{}")
    with pytest.raises(ConfigurationError, match=r"has 2 CSV \(a\.CSV\), 1 JSON Lines \(f\.jsonl\)\..*/\*\.csv\), or"):
        names(tmp_path)


def test_a_folder_with_the_characters_of_a_pattern_in_its_name_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "it's [1] of * files?"
    write_parquet(folder / "a.parquet", text_columns(2))
    assert names(folder) == ["a.parquet"]
    assert names(folder / "a.parquet") == ["a.parquet"]


def test_a_source_that_is_not_there_is_an_error_that_names_a_similar_file(tmp_path: Path) -> None:
    write_parquet(tmp_path / "intents.parquet", text_columns(2))
    with pytest.raises(ConfigurationError, match=r"intent\.parquet does not exist\. There is intents\.parquet\."):
        find_files(str(tmp_path / "intent.parquet"))


@pytest.mark.parametrize("source", ["", "ftp://host/data", "s3://user:secret@bucket/data", "nothing-*.parquet"])
def test_a_source_that_names_no_files_is_an_error(source: str) -> None:
    with pytest.raises(ConfigurationError, match=r"data\.source") as raised:
        find_files(source)
    assert "secret" not in str(raised.value)


def test_a_folder_without_parquet_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no \*\.parquet files"):
        find_files(str(tmp_path))


def test_an_untouched_file_is_hashed_once_and_a_touched_one_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(tmp_path / "data" / "a.parquet", text_columns(2))
    set_age(path, 3600)
    monkeypatch.setattr(sources, "SETTLED_SECONDS", 0.0)
    time.sleep(0.02)  # the file's change time, which cannot be set, must lie in the past
    hashed: list[str] = []

    def noted_hash(file: io.BufferedReader, note: Callable[[int], object]) -> str:
        hashed.append(sha256_of_stream(file, note))
        return hashed[-1]

    monkeypatch.setattr(sources, "sha256_of_stream", noted_hash)
    first = fingerprint_files(find_files(str(path)), tmp_path)
    assert fingerprint_files(find_files(str(path)), tmp_path) == first
    assert len(hashed) == 1
    write_parquet(path, text_columns(2, first=5))
    set_age(path, 3600)
    time.sleep(0.02)  # as above
    assert fingerprint_files(find_files(str(path)), tmp_path) == [sha256_of_file(path)] != first
    assert len(hashed) == 2


def test_a_file_written_just_now_is_not_trusted_to_the_cache(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "data" / "a.parquet", text_columns(2))
    stat = path.stat()
    first = fingerprint_files(find_files(str(path)), tmp_path)
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert fingerprint_files(find_files(str(path)), tmp_path) != first


def test_a_damaged_cache_counts_as_empty(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "data" / "a.parquet", text_columns(2))
    (tmp_path / sources.FINGERPRINT_CACHE).write_bytes(b'{"half a')
    assert fingerprint_files(find_files(str(path)), tmp_path) == [sha256_of_file(path)]


def test_a_file_changed_under_way_is_noticed(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", text_columns(2))
    files = find_files(str(path))
    fingerprint_files(files, tmp_path)
    ensure_unchanged(files)
    write_parquet(path, text_columns(3))
    with pytest.raises(ContractError, match=r"a\.parquet was changed while it was being prepared"):
        ensure_unchanged(files)


def test_a_change_is_told_file_by_file_and_field_by_field(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for index, name in enumerate(("part-1", "part-2", "part-3", "part-4")):
        write_parquet(folder / f"{name}.parquet", text_columns(2, first=index))
    before = text_config(folder)
    old = manifest_with(
        read_inputs(before, find_files(before.source), fingerprint_files(find_files(before.source), tmp_path))
    )
    write_parquet(folder / "part-3.parquet", text_columns(9))
    (folder / "part-1.parquet").unlink()
    (folder / "part-2.parquet").rename(folder / "second.parquet")
    write_parquet(folder / "part-5.parquet", text_columns(7))
    now = text_config(folder, max_tokens=128, split={"test_fraction": 0.2}, classes=["a", "b"], memory_limit="3GB")
    files = find_files(now.source)
    assert describe_change(old, read_inputs(now, files, fingerprint_files(files, tmp_path))) == [
        "file part-3.parquet: content changed",
        "file part-5.parquet: new",
        "file part-2.parquet: now called second.parquet",
        "file part-1.parquet: gone",
        'data.classes: not set -> ["a", "b"]',
        "data.max_tokens: 64 -> 128",
        "data.split.test_fraction: 0.1 -> 0.2",
    ]
    assert describe_change(old, old.inputs) == []


def manifest_with(inputs: dict[str, object]) -> DatasetManifest:
    empty = SplitRecord(num_rows=0, num_tokens=0, shards=[])
    return DatasetManifest(
        digest="0" * 64,
        inputs=inputs,
        versions={},
        target=Target(kind="binary", column="label", classes=["0", "1"], class_counts=[1, 1]),
        vocabulary_size=300,
        max_tokens=64,
        row_group_rows=16,
        numeric=[],
        categorical=[],
        splits={"train": empty, "validation": empty, "test": empty},
        tokenizer=None,
    )


def test_a_table_without_an_id_column_is_taken_unless_one_is_named(tmp_path: Path) -> None:
    columns = {name: values for name, values in text_columns(4).items() if name != "sample_id"}
    write_parquet(tmp_path / "part.parquet", columns)
    values = {"source": str(tmp_path), "text": "text", "label": "domain", "kind": "multiclass"}
    check_columns(find_files(str(tmp_path)), DataConfig.model_validate(values))
    with pytest.raises(ContractError, match=r"the column that data\.id names\n") as refused:
        check_columns(find_files(str(tmp_path)), DataConfig.model_validate(values | {"id": "key"}))
    assert "or take data.id out: file and row number are the id then" in str(refused.value)
    check_columns(find_files(str(tmp_path)), DataConfig.model_validate(values | {"id": ""}))
