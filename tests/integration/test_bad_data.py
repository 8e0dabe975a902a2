"""Every mistake in the user's data ends with one clear error, writes nothing, and leaves what was there alone."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage.errors import ConfigurationError, ContractError, StoreError
from storage.objects.local_store import LocalStore
from tasks.configuration.run import DataConfig
from tasks.data import split
from tasks.data.pipeline import prepare_dataset
from tests.helpers.parquet import text_columns, text_config, token_columns, token_config, write_parquet

NUM_ROWS = 120
Columns = dict[str, Any]


def with_value(column: str, row: int, value: Any) -> Callable[[Columns], Columns]:
    """One value of one column replaced, the type kept where it can be."""

    def change(columns: Columns) -> Columns:
        values = columns[column].to_pylist() if isinstance(columns[column], pa.Array) else list(columns[column])
        values[row] = value
        kind = columns[column].type if isinstance(columns[column], pa.Array) else None
        return columns | {column: pa.array(values, kind)}

    return change


def with_column(column: str, values: Any) -> Callable[[Columns], Columns]:
    return lambda columns: columns | {column: values}


def without(column: str) -> Callable[[Columns], Columns]:
    return lambda columns: {name: values for name, values in columns.items() if name != column}


def assert_fails(config: DataConfig, tmp_path: Path, *expected: str, error: type[Exception] = ContractError) -> str:
    """The message of the one error; the store holds what it held before and scratch has no working files."""
    store = LocalStore(tmp_path / "store")
    store.write("datasets/earlier/dataset.json", b"what was there before")
    with pytest.raises(error) as caught:
        prepare_dataset(config, store, tmp_path / "scratch")
    message = str(caught.value)
    for text in expected:
        assert text in message
    assert list(store.list_keys("")) == ["datasets/earlier/dataset.json"]
    assert store.read("datasets/earlier/dataset.json") == b"what was there before"
    assert not list((tmp_path / "scratch").glob("prepare-*"))
    return message


TEXT_MISTAKES: dict[str, tuple[Callable[[Columns], Columns], dict[str, Any], tuple[str, ...]]] = {
    "a missing column": (
        lambda columns: {name.replace("text", "prompt_text"): values for name, values in columns.items()},
        {},
        ("Column 'text' is missing in part-1.parquet", "data.text", "did you mean 'prompt_text'"),
    ),
    "a column that differs in case": (
        lambda columns: {name.replace("text", "Text"): values for name, values in columns.items()},
        {},
        ("Column 'text' is missing", "did you mean 'Text'"),
    ),
    "two columns that differ in case": (
        with_column("Text", ["other"] * NUM_ROWS),
        {},
        ("Column 'text' is ambiguous in part-1.parquet", "'Text'"),
    ),
    "a missing metadata column": (without("region"), {"categorical": ["region"]}, ("'region'", "data.categorical")),
    "no column of ids": (without("sample_id"), {}, ("'sample_id' is missing", "or take data.id out")),
    "text that is numbers": (
        with_column("text", list(range(NUM_ROWS))),
        {},
        ("Column 'text' in part-1.parquet has the wrong type", "expected: text", "found: int64"),
    ),
    "text that is NaN throughout": (
        with_column("text", pa.array([float("nan")] * NUM_ROWS)),
        {},
        ("Column 'text'", "found: double", "pandas", "NaN"),
    ),
    "text that is null once": (
        with_value("text", 7, None),
        {},
        ("'text'", "missing text", "1 of 240 rows", "row 7", "s00127"),
    ),
    "text that pandas wrote as 'nan'": (with_value("text", 3, "nan"), {}, ("NaN as text", "1 of 240", "s00123")),
    "text that is empty": (with_value("text", 3, ""), {}, ("empty text", "1 of 240", "s00123")),
    "text with nothing to see": (with_value("text", 3, " \t\u00a0\u3000\u200b"), {}, ("empty text", "s00123")),
    "a text column without a type": (with_column("text", pa.nulls(NUM_ROWS)), {}, ("missing text", "120 of 240")),
    "a null label": (with_value("domain", 5, None), {}, ("Column 'domain' breaks the contract: missing", "s00125")),
    "a label outside the domain": (
        with_value("domain", 5, "weather"),
        {"classes": ["billing", "travel", "work"]},
        ("'domain'", "unknown labels", "one of billing, travel, work", "1 of 240", "has 'weather'", "data.classes"),
    ),
    "labels that are floats": (
        with_column("domain", pa.array([1.0, float("nan")] * (NUM_ROWS // 2))),
        {},
        ("'domain' in part-1.parquet has the wrong type", "double", "pandas"),
    ),
    "labels of another type in another file": (
        with_column("domain", [1] * NUM_ROWS),
        {},
        ("disagree on the type of column 'domain'", "text in part-0.parquet", "whole numbers in part-1.parquet"),
    ),
    "an id twice in different files": (
        with_value("sample_id", 5, "s00003"),
        {},
        ("'sample_id'", "duplicate ids", "1 row too many", "'s00003' in 2 rows"),
    ),
    "a null id": (with_value("sample_id", 5, None), {}, ("'sample_id'", "missing", "row 5")),
    "an infinite number": (
        with_value("score", 9, float("-inf")),
        {"numeric": ["score"]},
        ("'score'", "infinite", "1 of 240", "s00129", "'-inf'"),
    ),
    "numbers that are text": (
        with_column("score", ["1.5"] * NUM_ROWS),
        {"numeric": ["score"]},
        ("'score' in part-1.parquet has the wrong type", "convert it to numbers"),
    ),
    "too many missing numbers": (
        with_column("score", pa.array([float("nan")] * NUM_ROWS)),
        {"numeric": ["length", "score"]},
        ("'score'", "missing values", "at most 20.0%", "of 240 rows", "data.max_missing_fraction"),
    ),
    "too many missing categories": (
        with_column("region", pa.nulls(NUM_ROWS, pa.string())),
        {"categorical": ["region"]},
        ("'region'", "missing values", "at most 20.0%"),
    ),
    "a list where a category should be": (
        with_column("region", [["a"]] * NUM_ROWS),
        {"categorical": ["region"]},
        ("'region' in part-1.parquet has the wrong type", "list<"),
    ),
    "a row with too many tokens": (
        with_value("text", 5, "word " * 100),
        {},
        ("'text'", "too long", "data.max_tokens = 64", "id 's00125' has", "1 of 240", 'data.too_long = "truncate"'),
    ),
    "a null time": (
        with_column("created_at", pa.array([None] + [datetime(2026, 1, 1)] * (NUM_ROWS - 1))),
        {"split": {"by": "time", "column": "created_at"}},
        ("'created_at'", "missing", "row 0"),
    ),
    "times that are text": (
        with_column("created_at", ["2026-01-01"] * NUM_ROWS),
        {"split": {"by": "time", "column": "created_at"}},
        ("'created_at' in part-1.parquet has the wrong type", "convert it to numbers or timestamps"),
    ),
    "a value that names no split": (
        with_column("part", ["train", "dev", "test", "eval"] * (NUM_ROWS // 4)),
        {"split": {"by": "given", "column": "part"}},
        (
            "Column 'part' breaks the contract: names no split",
            "train (train, training), validation (validation, validate, valid, val, dev, development), test (test, ",
            "30 of 240 rows: part-1.parquet has 30 (row 3, id 's00123' has 'eval'",
            "data.split.train_values",
        ),
    ),
    "a usual name where others were said": (
        with_column("part", ["train", "dev", "test", "holdout"] * (NUM_ROWS // 4)),
        {"split": {"by": "given", "column": "part", "test_values": ["holdout"]}},
        ("names no split", "test (holdout)", "has 'test'"),
    ),
    "no split in a row": (
        with_column("part", pa.array([None, "dev", "test", "train"] * (NUM_ROWS // 4))),
        {"split": {"by": "given", "column": "part"}},
        ("Column 'part' breaks the contract: missing", "30 of 240 rows", "row 0, id 's00120'"),
    ),
    "a split that no row names": (
        with_column("part", ["train"] * NUM_ROWS),
        {"split": {"by": "given", "column": "part", "test_values": ["holdout"]}},
        ("The validation and the test split would be empty", "'train' in 240 rows", "data.split.train_values"),
    ),
    "splits that are real numbers": (
        with_column("part", [0.5] * NUM_ROWS),
        {"split": {"by": "given", "column": "part"}},
        ("'part' in part-1.parquet has the wrong type", "text or whole numbers", "data.split.column by given"),
    ),
    "one class only": (with_column("domain", ["work"] * NUM_ROWS), {"source": "part-1.parquet"}, ("one class only",)),
    "a class without training rows": (
        lambda columns: columns,
        {"classes": ["billing", "travel", "weather", "work"]},
        ("training split has no row of 1 of 4 classes", "'weather' (0 rows)"),
    ),
}


@pytest.mark.parametrize("mistake", TEXT_MISTAKES)
def test_a_mistake_in_text_data_is_one_clear_error(tmp_path: Path, mistake: str) -> None:
    change, options, expected = TEXT_MISTAKES[mistake]
    first = text_columns(NUM_ROWS) | {"created_at": [datetime(2026, 1, 2)] * NUM_ROWS, "part": ["train"] * NUM_ROWS}
    more = {"created_at": [datetime(2026, 1, 1)] * NUM_ROWS, "part": ["train"] * NUM_ROWS}
    second = change(text_columns(NUM_ROWS, first=NUM_ROWS) | more)
    write_parquet(tmp_path / "data" / "part-0.parquet", first)
    write_parquet(tmp_path / "data" / "part-1.parquet", second)
    source = tmp_path / "data" / options.get("source", "")
    config = text_config(source, **{key: value for key, value in options.items() if key != "source"})
    message = assert_fails(config, tmp_path, *expected)
    assert all(word in message for word in ("expected:", "found:", "what to do:", "No data set was written"))


TOKEN_MISTAKES: dict[str, tuple[Callable[[Columns], Columns], dict[str, Any], tuple[str, ...]]] = {
    "an id beyond the vocabulary": (
        with_value("input_ids", 4, [5000] * 12),
        {},
        ("'input_ids'", "out of range", "from 1 to 999", "1 of 120", "id '4'", "data.vocabulary_size"),
    ),
    "a negative id": (with_value("input_ids", 4, [-1] * 12), {}, ("'input_ids'", "out of range", "id '4'")),
    "padding that no mask hides": (
        lambda columns: columns,
        {"attention_mask": None},
        ("out of range", "data.attention_mask"),
    ),
    "null tokens": (with_value("input_ids", 4, None), {}, ("'input_ids'", "missing", "id '4'")),
    "a null among the tokens": (with_value("input_ids", 4, [1, None] * 6), {}, ("null among the tokens", "id '4'")),
    "a null mask": (with_value("attention_mask", 4, None), {}, ("'attention_mask'", "missing", "id '4'")),
    "a mask of another length": (
        with_value("attention_mask", 4, [1, 1]),
        {},
        ("'attention_mask'", "another length", "id '4' has '2 and 12'"),
    ),
    "a longer mask": (with_value("attention_mask", 4, [1] * 13), {}, ("another length", "id '4' has '13 and 12'")),
    "a mask of other numbers": (with_value("attention_mask", 4, [2] * 12), {}, ("other than 0 and 1", "id '4'")),
    "a null in the mask": (with_value("attention_mask", 4, [1, None] * 6), {}, ("other than 0 and 1", "id '4'")),
    "a mask that hides all": (with_value("attention_mask", 4, [0] * 12), {}, ("no tokens", "id '4'")),
    "an empty row": (
        lambda columns: with_value("attention_mask", 4, [])(with_value("input_ids", 4, [])(columns)),
        {},
        ("no tokens", "id '4'"),
    ),
    "a row that is too long": (
        lambda columns: columns,
        {"max_tokens": 11},
        ("too long", "data.max_tokens = 11", "12 tokens"),
    ),
    "tokens that are text": (
        with_column("input_ids", ["1 2 3"] * NUM_ROWS),
        {},
        ("'input_ids' in a.parquet has the wrong type", "lists of whole numbers", "string"),
    ),
    "tokens that are lists of floats": (
        with_column("input_ids", [[1.5]] * NUM_ROWS),
        {},
        ("'input_ids' in a.parquet has the wrong type", "list<"),
    ),
    "a third label": (
        with_column("label", [i % 3 for i in range(NUM_ROWS)]),
        {},
        ("'label'", "unknown labels", "one of 0, 1", "40 of 120", "has '2'"),
    ),
    "a split column of one value": (
        with_column("shard_id", [1] * NUM_ROWS),
        {"split": {"by": "column", "column": "shard_id"}},
        ("split would be empty", "shard_id"),
    ),
}


@pytest.mark.parametrize("mistake", TOKEN_MISTAKES)
def test_a_mistake_in_token_data_is_one_clear_error(tmp_path: Path, mistake: str) -> None:
    change, options, expected = TOKEN_MISTAKES[mistake]
    source = write_parquet(tmp_path / "a.parquet", change(token_columns(NUM_ROWS)))
    assert_fails(token_config(source, **options), tmp_path, *expected)


def two_files(tmp_path: Path) -> tuple[Path, Path]:
    folder = tmp_path / "data"
    write_parquet(folder / "part-0.parquet", text_columns(NUM_ROWS))
    return folder, write_parquet(folder / "part-1.parquet", text_columns(NUM_ROWS, first=NUM_ROWS))


def test_a_label_that_is_no_target_is_not_listed_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "MOST_CLASSES", 50)
    columns = text_columns(NUM_ROWS) | {"domain": [f"d{i}" for i in range(NUM_ROWS)]}
    source = write_parquet(tmp_path / "a.parquet", columns)
    assert_fails(
        text_config(source), tmp_path, "'domain' has too many classes", "at most 50 distinct values", "data.label names"
    )


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    folder, second = two_files(tmp_path)
    second.write_bytes(b"")
    assert_fails(text_config(folder), tmp_path, f"{second} is empty", "0 bytes")


@pytest.mark.parametrize("kept", [0.05, 0.5, 0.99])
def test_a_file_that_was_cut_off_is_named(tmp_path: Path, kept: float) -> None:
    folder, second = two_files(tmp_path)
    content = second.read_bytes()
    second.write_bytes(content[: int(len(content) * kept)])
    assert_fails(text_config(folder), tmp_path, f"{second} cannot be read", "cut off or damaged")


def test_a_file_that_is_not_parquet_is_named(tmp_path: Path) -> None:
    folder, second = two_files(tmp_path)
    second.write_text("sample_id,text\n1,hello\n")
    assert_fails(text_config(folder), tmp_path, f"{second} cannot be read", "not Parquet")


def test_a_file_with_damage_in_its_middle_is_named(tmp_path: Path) -> None:
    folder, second = two_files(tmp_path)
    content = bytearray(second.read_bytes())
    content[4:600] = bytes(596)
    second.write_bytes(content)
    assert_fails(text_config(folder), tmp_path, f"{second} cannot be read")


def no_rows() -> Columns:
    return {name: pa.array(values)[:0] for name, values in text_columns(3).items()}


def test_files_without_rows_are_an_error(tmp_path: Path) -> None:
    source = write_parquet(
        tmp_path / "a.parquet", {name: pa.array(values)[:0] for name, values in text_columns(3).items()}
    )
    assert_fails(text_config(source), tmp_path, "no rows in 'a.parquet'")


def test_one_file_without_rows_among_others_is_no_mistake(tmp_path: Path) -> None:
    folder, second = two_files(tmp_path)
    write_parquet(second, no_rows())
    manifest = prepare_dataset(text_config(folder), LocalStore(tmp_path / "store"), tmp_path / "scratch")
    assert sum(split.num_rows for split in manifest.splits.values()) == NUM_ROWS


def test_a_column_that_only_the_names_of_folders_have_is_looked_for_there(tmp_path: Path) -> None:
    columns = text_columns(NUM_ROWS)
    del columns["domain"]
    write_parquet(tmp_path / "data" / "domain=work" / "a.parquet", columns)
    assert_fails(text_config(tmp_path / "data"), tmp_path, "names of folders, such as domain=work, are not read")


def test_bytes_that_are_no_text_are_said_with_column_and_row(tmp_path: Path) -> None:
    columns = text_columns(NUM_ROWS)
    texts = [text.encode() for text in columns["text"]]
    texts[7] = b"caf\xe9"
    columns["text"] = pa.Array.from_buffers(pa.string(), NUM_ROWS, pa.array(texts, pa.binary()).buffers())
    source = write_parquet(tmp_path / "a.parquet", columns)
    assert_fails(text_config(source), tmp_path, "Column 'text'", "not UTF-8", "row 7 of", r"b'caf\xe9'")


def test_a_source_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    assert_fails(text_config(tmp_path / "nothing"), tmp_path, "does not exist", error=ConfigurationError)


def test_a_memory_limit_that_is_no_size_is_an_error(tmp_path: Path) -> None:
    folder, _ = two_files(tmp_path)
    config = text_config(folder, memory_limit="2 apples")
    assert_fails(config, tmp_path, "data.memory_limit must be a size", error=ConfigurationError)


def test_too_little_memory_is_said_with_what_to_do(tmp_path: Path) -> None:
    folder, _ = two_files(tmp_path)
    assert_fails(text_config(folder, memory_limit="1KB"), tmp_path, "Raise data.memory_limit", error=ConfigurationError)


def test_a_scratch_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    folder, _ = two_files(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=r"Cannot write working files in .*file/scratch: Not a directory"):
        prepare_dataset(text_config(folder), LocalStore(tmp_path / "store"), tmp_path / "file" / "scratch")


def test_a_store_that_cannot_be_written_is_said_and_scratch_is_clean(tmp_path: Path) -> None:
    folder, _ = two_files(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=r"file/store"):
        prepare_dataset(text_config(folder), LocalStore(tmp_path / "file" / "store"), tmp_path / "scratch")
    assert not list((tmp_path / "scratch").glob("prepare-*"))
