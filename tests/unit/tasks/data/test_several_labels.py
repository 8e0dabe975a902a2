"""Rows with any number of labels, from lists or columns of 0 and 1: the same shards, and one error for bad data."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from storage.datasets import SPLITS, DatasetManifest, load_dataset
from storage.errors import ContractError
from storage.objects.local_store import LocalStore
from tasks.configuration.run import DataConfig
from tasks.data.contract.result import find_contract_result
from tasks.data.pipeline import prepare_dataset
from tasks.data.remarks.remarks import remarks_on
from tasks.models.labelled_table import SPLIT, prepare_table
from tests.helpers.parquet import read_rows, read_split, text_columns, text_config, token_columns, write_table

NUM_ROWS = 120
NAMES = ["insult", "spam", "toxic"]


def tags(row: int) -> list[str]:
    """Of each eighth row none, of each eighth all three."""
    return [name for bit, name in enumerate(NAMES) if row >> bit & 1]


def as_list(rows: range = range(NUM_ROWS)) -> dict[str, Any]:
    """Out of order, and with one of them twice."""
    return {"tags": [[*reversed(tags(row)), *tags(row)[:1]] for row in rows]}


def as_columns(kind: type, rows: range = range(NUM_ROWS)) -> dict[str, Any]:
    return {name: [kind(name in tags(row)) for row in rows] for name in NAMES}


def config_of(source: Path, label: str | list[str] = "tags", **changes: Any) -> DataConfig:
    return text_config(source, label=label, kind="multilabel", **changes)


def prepare(config: DataConfig, folder: Path) -> DatasetManifest:
    return prepare_dataset(config, LocalStore(folder / "store"), folder / "scratch")


def labels_by_id(dataset: DatasetManifest, folder: Path) -> dict[str, list[str]]:
    rows = read_rows(LocalStore(folder / "store"), dataset)
    return {name: [dataset.target.classes[index] for index in row["label"]] for name, row in rows.items()}


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.jsonl", "a.csv"])
@pytest.mark.parametrize("form", ["list", "whole numbers", "booleans"])
def test_lists_and_columns_of_every_format_give_the_same_rows(tmp_path: Path, name: str, form: str) -> None:
    if form == "list" and name == "a.csv":
        pytest.skip("refused, as a test below shows")
    labels = as_list() if form == "list" else as_columns(int if form == "whole numbers" else bool)
    source = write_table(tmp_path / name, text_columns(NUM_ROWS) | labels)
    dataset = prepare(config_of(source, "tags" if form == "list" else NAMES), tmp_path)
    assert dataset.target.classes == NAMES and dataset.target.kind == "multilabel"
    assert labels_by_id(dataset, tmp_path) == {f"s{row:05d}": tags(row) for row in range(NUM_ROWS)}
    of_splits = [split.class_counts for split in dataset.splits.values()]
    assert [sum(counts) for counts in zip(*of_splits, strict=True)] == [60, 60, 60]
    assert dataset.target.class_counts == of_splits[0]
    assert sum(split.num_rows for split in dataset.splits.values()) == NUM_ROWS


def test_codes_in_lists_of_rows_with_tokens_have_names_in_the_order_that_was_given(tmp_path: Path) -> None:
    codes = [[bit + 1 for bit in range(3) if row >> bit & 1] for row in range(NUM_ROWS)]
    source = write_table(tmp_path / "a.parquet", token_columns(NUM_ROWS) | {"tags": codes})
    names = {"3": "toxic", "1": "insult", "2": "spam"}
    tokens: dict[str, Any] = {
        "text": None,
        "tokens": "input_ids",
        "attention_mask": "attention_mask",
        "vocabulary_size": 1000,
    }
    dataset = prepare(config_of(source, class_names=names, **tokens), tmp_path)
    assert dataset.target.classes == ["toxic", "insult", "spam"]
    rows = labels_by_id(dataset, tmp_path)
    assert all(set(rows[str(row)]) == set(tags(row)) for row in range(NUM_ROWS))
    assert all(found == sorted(found, key=dataset.target.classes.index) for found in rows.values())


def with_value(columns: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    return columns | {name: [*columns[name][:7], value, *columns[name][8:]]}


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
@pytest.mark.parametrize(
    ("changes", "settings", "expected"),
    [
        (("tags", None), {}, "a value in every row"),
        (("tags", ["spam", None]), {}, "a label at every position"),
        (("tags", ["spam", "news"]), {"classes": NAMES}, "one of insult, spam, toxic"),
        (("spam", None), {"label": NAMES}, "0 or 1 in every row"),
        (("spam", 2), {"label": NAMES}, "only 0 and 1|0 and 1, or true and false"),
    ],
    ids=["no list", "a null in a list", "a label that is not listed", "no 0 or 1", "a 2"],
)
def test_a_wrong_label_is_one_error_that_names_the_column_and_the_row(
    tmp_path: Path, name: str, changes: tuple[str, Any], settings: dict[str, Any], expected: str
) -> None:
    columns = with_value(text_columns(NUM_ROWS) | as_list() | as_columns(int), *changes)
    source = write_table(tmp_path / name, columns)
    with pytest.raises(ContractError) as caught:
        prepare(config_of(source, **settings), tmp_path)
    message = str(caught.value)
    assert f"Column {changes[0]!r}" in message
    assert any(f"expected: {words}" in message for words in expected.split("|"))
    assert "row 7" in message or "line 8" in message
    assert ("'[news]'" in message) == (changes[1] == ["spam", "news"])


@pytest.mark.parametrize(
    ("name", "columns", "settings", "words"),
    [
        ("a.csv", {"tags": ["['spam']"] * 20}, {}, "cannot have lists of labels"),
        ("a.parquet", {"tags": ["spam"] * 20}, {}, "expected: lists of texts or lists of whole numbers"),
        ("a.parquet", {"tags": [1] * 20}, {}, "several columns of 0 and 1: data.label = ['toxic', 'insult']"),
        ("a.parquet", as_list(range(20)), {"kind": "multiclass"}, "set data.kind = 'multilabel'"),
        ("a.parquet", {name: [0.0] * 20 for name in NAMES}, {"label": NAMES}, "write 0 or 1 in every row"),
        ("a.jsonl", {"tags": ["spam"] * 20}, {}, "expected: lists of texts or whole numbers, for data.label"),
        ("a.parquet", {"tags": [[]] * 20}, {}, "found: no label in any row"),
    ],
)
def test_columns_that_cannot_be_labels_are_refused_with_what_can(
    tmp_path: Path, name: str, columns: dict[str, Any], settings: dict[str, Any], words: str
) -> None:
    source = write_table(tmp_path / name, text_columns(20) | columns)
    with pytest.raises(ContractError) as caught:
        prepare(config_of(source).model_copy(update={"source": str(source), **settings}), tmp_path)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "multiclass"}, "for kind = 'multilabel' alone"),
        ({"label": ["spam"]}, "at least two columns"),
        ({"classes": ["insult", "spam"]}, "must be the columns that label names"),
        ({"class_names": ["a", "b", "c"]}, "a name for each column"),
        ({"label": ["spam", "spam"]}, "named twice: spam"),
    ],
)
def test_settings_that_make_no_sense_together_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        text_config("a.parquet", **({"label": NAMES, "kind": "multilabel"} | settings))


@pytest.mark.parametrize("treatment", ["drop", "other"])
def test_rare_labels_are_taken_from_their_rows_or_become_one_and_that_is_said(tmp_path: Path, treatment: str) -> None:
    labels = [[*tags(row), *{3: ["lost", "seen"], 90: ["seen"], 110: ["lost"]}.get(row, [])] for row in range(NUM_ROWS)]
    part = ["train" if row < 80 else "dev" if row < 100 else "test" for row in range(NUM_ROWS)]
    source = write_table(tmp_path / "a.parquet", text_columns(NUM_ROWS) | {"tags": labels, "part": part})
    config = config_of(source, rare_classes=treatment, split={"by": "given", "column": "part"})
    dataset = prepare(config, tmp_path)
    store = LocalStore(tmp_path / "store")
    other = ["other"] if treatment == "other" else []
    assert dataset.target.classes == sorted([*NAMES, *other])
    rows = labels_by_id(dataset, tmp_path)
    assert [set(rows[f"s{row:05d}"]) for row in (3, 90, 110)] == [{*tags(row), *other} for row in (3, 90, 110)]
    assert [dataset.splits[name].num_rows for name in SPLITS] == [80, 20, 20]
    said = remarks_on(dataset, find_contract_result(store, dataset), config)[0]
    assert "2 labels of which a split has no row" in said and "'lost' (2 rows), 'seen' (2 rows)" in said
    if other:  # row 3 has both rare labels, and counts once
        index = dataset.target.classes.index("other")
        assert [split.class_counts[index] for split in dataset.splits.values() if split.class_counts] == [1, 1, 1]
    table = write_table(tmp_path / "b.parquet", text_columns(8, first=700) | {"tags": [["lost", "spam"], *[[]] * 7]})
    (tmp_path / "table").mkdir()
    labelled = prepare_table(str(table), config, dataset, store, tmp_path / "table")
    own = LocalStore(Path(labelled.store))
    found = read_split(own, load_dataset(own, labelled.digest), SPLIT).to_pylist()
    of_first = next(row["label"] for row in found if row["id"] == "s00700")
    assert {dataset.target.classes[index] for index in of_first} == {"spam", *other} and len(found) == 8


def test_a_users_suite_sees_the_columns_and_the_measures_are_of_rows(tmp_path: Path) -> None:
    suite = [
        {"type": "expect_column_values_to_be_in_set", "kwargs": {"column": name, "value_set": [0, 1]}} for name in NAMES
    ]
    suite.append({"type": "expect_column_values_to_be_between", "kwargs": {"column": "rows", "min_value": NUM_ROWS}})
    path = tmp_path / "suite.json"
    path.write_text(json.dumps({"name": "mine", "expectations": suite}))
    source = write_table(tmp_path / "a.parquet", text_columns(NUM_ROWS) | as_columns(int))
    dataset = prepare(config_of(source, NAMES, expectations=str(path)), tmp_path)
    contract = find_contract_result(LocalStore(tmp_path / "store"), dataset)
    assert contract is not None
    found = json.dumps(contract)
    assert "in 60 of 120 rows (50.0%)" in found
