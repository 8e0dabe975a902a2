"""What classes are called: booleans are true and false in every format; codes have the names that a person gives."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from storage.datasets import DatasetManifest, load_dataset
from storage.errors import ContractError
from storage.objects.local_store import LocalStore
from tasks.configuration.run import DataConfig
from tasks.data.contract.result import find_contract_result
from tasks.data.pipeline import prepare_dataset
from tasks.data.remarks.remarks import remarks_on
from tasks.models.description import describe_labels
from tasks.models.labelled_table import SPLIT, prepare_table
from tests.helpers.parquet import read_rows, read_split, text_columns, text_config, write_parquet, write_table

NAMES = ["world", "sports", "business", "tech"]


def prepare(config: DataConfig, folder: Path) -> DatasetManifest:
    return prepare_dataset(config, LocalStore(folder / "store"), folder / "scratch")


def named_rows(dataset: DatasetManifest, folder: Path) -> dict[str, str]:
    rows = read_rows(LocalStore(folder / "store"), dataset)
    return {name: dataset.target.classes[row["label"]] for name, row in rows.items()}


@pytest.mark.parametrize(
    ("class_names", "first", "classes"),
    [
        (NAMES, 0, NAMES),
        ({"1": "world", "2": "sports", "3": "business", "4": "tech"}, 1, NAMES),
        ({"3": "business", "1": "world", "4": "tech", "2": "sports"}, 1, ["business", "world", "tech", "sports"]),
        (["3", "2", "1", "0"], 0, ["3", "2", "1", "0"]),
    ],
    ids=["a list", "from 1 on", "in another order", "names that are codes of others"],
)
def test_codes_are_classes_with_the_names_that_were_given(
    tmp_path: Path, class_names: Any, first: int, classes: list[str]
) -> None:
    columns = text_columns(240) | {"domain": [first + i % 4 for i in range(240)]}
    config = text_config(write_parquet(tmp_path / "a.parquet", columns), class_names=class_names)
    dataset = prepare(config, tmp_path)
    assert dataset.target.classes == classes == describe_labels(dataset)["classes"]
    name_of = dict(enumerate(class_names)) if isinstance(class_names, list) else class_names
    assert named_rows(dataset, tmp_path) == {
        f"s{i:05d}": name_of[first + i % 4 if isinstance(class_names, list) else str(first + i % 4)] for i in range(240)
    }
    again = DataConfig.model_validate_json(config.model_dump_json())
    assert again == config and prepare(again, tmp_path) == dataset


@pytest.mark.parametrize("name", ["b.parquet", "b.jsonl", "b.csv"])
def test_a_code_without_a_name_is_one_error_with_the_code_file_and_row(tmp_path: Path, name: str) -> None:
    columns = text_columns(90) | {"domain": [7 if i == 31 else i % 3 for i in range(90)]}
    write_table(tmp_path / "source" / name, columns)
    with pytest.raises(ContractError) as caught:
        prepare(text_config(tmp_path / "source", class_names=NAMES[:3]), tmp_path)
    message = str(caught.value)
    assert "expected: one of 0, 1, 2\n" in message and f"{name} has 1 (row 31, id 's00031' has '7')" in message
    assert "what to do: correct these labels, or name all that may occur in data.class_names" in message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"class_names": ["a", "b", "a"]}, "must differ from each other"),
        ({"class_names": {"0": "a", "1": " "}}, "not be empty"),
        ({"class_names": 3}, r"(?s)^1 validation error.*must be a list of names"),
        ({"class_names": {"1": ["a"]}}, r"(?s)^1 validation error.*must be a list of names"),
        ({"class_names": ["a"]}, "at least two classes"),
        ({"class_names": ["a", "b", "c"], "kind": "binary"}, "must name two classes"),
        ({"class_names": ["a", "b"], "classes": ["0", "1"]}, "take one of them out"),
    ],
)
def test_names_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        text_config("a.parquet", **settings)


def test_what_is_rare_and_another_table_have_the_names_too(tmp_path: Path) -> None:
    labels = [3 if i in (5, 40) else 2 if i in (7, 100) else i % 2 for i in range(120)]
    part = ["train" if i < 80 else "dev" if i < 101 else "test" for i in range(120)]
    columns = text_columns(120) | {"domain": labels, "part": part}
    source = write_parquet(tmp_path / "a.parquet", columns)
    config = text_config(
        source, class_names=NAMES, rare_classes="drop", split={"by": "given", "column": "part"}, kind="multiclass"
    )
    dataset = prepare(config, tmp_path)
    store = LocalStore(tmp_path / "store")
    said = remarks_on(dataset, find_contract_result(store, dataset), config)
    assert dataset.target.classes == ["world", "sports"]
    assert said[0].endswith("'business' (2 rows), 'tech' (2 rows).")
    (tmp_path / "table").mkdir()
    other = write_parquet(tmp_path / "b.parquet", text_columns(10, first=700) | {"domain": [1, 0, 3, 1, 0] * 2})
    table = prepare_table(str(other), config, dataset, store, tmp_path / "table")
    own = LocalStore(Path(table.store))
    found = load_dataset(own, table.digest)
    rows = {row["id"]: found.target.classes[row["label"]] for row in read_split(own, found, SPLIT).to_pylist()}
    assert rows == {f"s{700 + i:05d}": ("world", "sports")[label] for i, label in enumerate([1, 0, 3, 1, 0] * 2)
                    if label != 3}  # fmt: skip


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_booleans_are_true_and_false_and_the_same_in_every_format(tmp_path: Path, kind: str) -> None:
    columns = text_columns(120) | {"domain": [i % 3 == 0 for i in range(120)]}
    # In CSV all is text, and in a target of more classes it stays as it is written.
    names = ["a.parquet", "a.jsonl", "a.feather", *(["a.csv"] if kind == "binary" else [])]
    prepared = []
    for name in names:
        config = text_config(write_table(tmp_path / name, columns), kind=kind)
        dataset = prepare(config, tmp_path)
        assert dataset.target.classes == ["false", "true"]
        prepared.append(dataset.splits)
    assert all(splits == prepared[0] for splits in prepared)
    assert named_rows(dataset, tmp_path) == {f"s{i:05d}": "true" if i % 3 == 0 else "false" for i in range(120)}


def test_booleans_and_numbers_in_one_binary_target_are_an_error(tmp_path: Path) -> None:
    columns = text_columns(90) | {"domain": ["true", "0", "1"] * 30}
    config = text_config(write_parquet(tmp_path / "a.parquet", columns), kind="binary")
    with pytest.raises(ContractError, match=r"two kinds(?s:.*)true and false, in all rows(?s:.*)'0', '1', 'true'"):
        prepare(config, tmp_path)


def test_a_table_in_csv_has_the_booleans_of_a_run_in_csv(tmp_path: Path) -> None:
    columns = text_columns(120) | {"domain": [i % 3 == 0 for i in range(120)]}
    config = text_config(write_table(tmp_path / "a.csv", columns), kind="binary")
    dataset = prepare(config, tmp_path)
    (tmp_path / "table").mkdir()
    other = write_table(tmp_path / "b.csv", text_columns(6, first=700) | {"domain": [True, False] * 3})
    table = prepare_table(str(other), config, dataset, LocalStore(tmp_path / "store"), tmp_path / "table")
    own = LocalStore(Path(table.store))
    found = load_dataset(own, table.digest)
    assert sorted(read_split(own, found, SPLIT)["label"].to_pylist()) == [0, 0, 0, 1, 1, 1]
