"""What is said of data that break no rule: texts of training that are measured too, labels that look alike."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape

from storage.datasets import DatasetManifest, dataset_key
from storage.objects.local_store import LocalStore
from storage.runs.run_state import RunState
from tasks.configuration.run import DataConfig, RunConfig
from tasks.configuration.split import SplitConfig
from tasks.data.contract.result import find_contract_result
from tasks.data.label_form import describe_form, find_form
from tasks.data.pipeline import prepare_dataset
from tasks.data.remarks.alike_labels import describe_alike, find_alike
from tasks.data.remarks.remarks import SHARED_TEXTS, remarks_on
from tasks.data.remarks.shared_texts import describe_shared_texts
from tasks.reporting.written import make_report
from tests.helpers.parquet import (
    read_rows,
    text_columns,
    text_config,
    token_columns,
    token_config,
    write_parquet,
)

NUM_TEXTS = 300
Rows = dict[str, dict[str, Any]]


def twice(columns: dict[str, Any], id_column: str, number: Callable[[int], object]) -> dict[str, Any]:
    """Every row under two ids."""
    doubled = {name: [*list(values), *list(values)] for name, values in columns.items()}
    return doubled | {id_column: [number(i) for i in range(2 * len(columns[id_column]))]}


def prepare(config: DataConfig, folder: Path) -> tuple[DatasetManifest, Rows, dict[str, Any]]:
    store = LocalStore(folder / "store")
    dataset = prepare_dataset(config, store, folder / "scratch")
    contract = find_contract_result(store, dataset)
    assert contract is not None
    return dataset, read_rows(store, dataset), contract


def configure(kind: str, folder: Path, **settings: Any) -> DataConfig:
    if kind == "text":
        columns = twice(text_columns(NUM_TEXTS), "sample_id", lambda i: f"s{i:05d}")
        return text_config(write_parquet(folder / "a.parquet", columns), **settings)
    columns = twice({name: list(values) for name, values in token_columns(NUM_TEXTS).items()}, "sample_id", int)
    columns |= {name: [[int(n) for n in row] for row in columns[name]] for name in ("input_ids", "attention_mask")}
    return token_config(write_parquet(folder / "a.parquet", columns), **settings)


def shared(rows: Rows, split: str) -> int:
    known = {tuple(row["tokens"]) for row in rows.values() if row["split"] == "train"}
    return sum(tuple(row["tokens"]) in known for row in rows.values() if row["split"] == split)


@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_texts_of_training_rows_that_are_measured_too_are_counted_and_said(tmp_path: Path, kind: str) -> None:
    config = configure(kind, tmp_path)
    dataset, rows, contract = prepare(config, tmp_path)
    assert contract[SHARED_TEXTS] == {
        split: {"rows": dataset.splits[split].num_rows, "in_training": shared(rows, split)}
        for split in ("validation", "test")
    }
    (said,) = remarks_on(dataset, contract, config)
    assert (
        shared(rows, "test") > 20 and f" and {shared(rows, 'test'):,} of {dataset.splits['test'].num_rows} te" in said
    )
    assert said.startswith(f"{shared(rows, 'validation')} of ") and 'set data.split.by = "text"' in said


@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_split_by_text_equal_texts_are_in_one_split(tmp_path: Path, kind: str) -> None:
    config = configure(kind, tmp_path, split={"by": "text"})
    dataset, rows, contract = prepare(config, tmp_path)
    assert [found["in_training"] for found in contract[SHARED_TEXTS].values()] == [0, 0]
    assert shared(rows, "test") == shared(rows, "validation") == 0
    assert 20 < dataset.splits["test"].num_rows < 120
    assert remarks_on(dataset, contract, config) == []


def test_by_text_takes_no_column() -> None:
    with pytest.raises(ValueError, match="column goes with by = 'column' or 'time' or 'given' alone: by is 'text'"):
        SplitConfig(by="text", column="shard")


def test_a_share_below_one_per_cent_is_not_said_and_where_a_column_decides_only_what_helps_is() -> None:
    config = text_config("a.parquet", split={"by": "given", "column": "part"})
    counts = {"validation": {"rows": 1000, "in_training": 10}, "test": {"rows": 555, "in_training": 64}}
    assert describe_shared_texts(counts, config) == [
        "64 of 555 test rows (11.5%) have the text of a training row: the metrics there are better than they would be "
        "on rows that the model has not seen. Remove the repeated rows."
    ]


def test_labels_that_look_alike_are_said() -> None:
    groups = find_alike(["spam", "Spam", "spam ", "ham", "cafe\u0301", "caf\u00e9", "1", "2"])
    assert groups == [["Spam", "spam", "spam "], ["cafe\u0301", "caf\u00e9"]]
    (said,) = describe_alike(groups)
    assert r"'Spam' and 'spam' and 'spam '; 'cafe\u0301' and 'caf\xe9'. If they mean the same" in said
    assert describe_alike(find_alike(["a", "b"])) == []


def test_a_split_that_lacks_a_class_is_said(tmp_path: Path) -> None:
    columns = text_columns(90)
    part = ["test" if i >= 80 else "dev" if i >= 70 and label != "work" else "train"
            for i, label in enumerate(columns["domain"])]  # fmt: skip
    source = write_parquet(tmp_path / "a.parquet", columns | {"part": part})
    config = text_config(source, split={"by": "given", "column": "part"})
    dataset, _, contract = prepare(config, tmp_path)
    assert remarks_on(dataset, contract, config) == [
        "The validation split has no row of 1 of 3 classes: 'work'. "
        "How well these are recognised is not measured there. "
        'data.rare_classes = "drop" leaves such classes out of all splits, "other" makes them one class.'
    ]


def test_the_report_of_a_run_has_what_was_said_of_its_data_and_is_made_without_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    columns = text_columns(NUM_TEXTS)
    columns["domain"] = ["<b>" if i % 9 == 0 else "<B>" if label == "work" else label
                         for i, label in enumerate(columns["domain"])]  # fmt: skip
    config = text_config(write_parquet(tmp_path / "a.parquet", columns))
    dataset, _, contract = prepare(config, tmp_path)
    assert dataset.contract is not None
    (said,) = remarks_on(dataset, contract, config)
    stored = RunConfig.model_validate({"run": "r", "data": config.model_dump()}).model_dump(mode="json")
    state = RunState(
        run="r", created_at=1, config=stored, dataset_digest=dataset.digest, dataset_sha256="s" * 64, steps_total=10
    )
    store = LocalStore(tmp_path / "store")
    page = make_report(store, state, dataset)
    assert said.startswith("Labels differ by upper and lower case") and f"<p>{escape(said)}</p>" in page
    store.write(dataset_key(dataset.digest, dataset.contract.name), b"{}")
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert "Remarks on the data" not in make_report(store, state, dataset)
    assert "The report has no remarks on the data: their contract.json cannot be read." in caplog.text


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([f"{i * 0.013:.3f}" for i in range(40)], "40 different numbers, such as 0.000"),
        ([f"{i}e-3" for i in range(40)], "40 different numbers, such as 0e-3"),
        (["1", "2", "1,2", "2,3", "1,2,3", "3"], "3 labels, such as '1,2', look like several labels joined by ','"),
        (["a; b", "b; c", "a; c", "d"], "3 labels, such as 'a; b', look like several labels joined by ';'"),
    ],
)
def test_labels_that_are_numbers_to_predict_or_several_in_one_are_remarked_on(labels: list[str], words: str) -> None:
    (sentence,) = describe_form(find_form(labels))
    assert words in sentence


@pytest.mark.parametrize(
    "labels",
    [
        ["0.5", "1.0", "1.5", "2.0"],  # ratings
        [str(i) for i in range(1000)],  # codes
        ["Bonaire, Sint Eustatius and Saba", "Korea, Republic of", "Tanzania, United Republic of", "Malta"],
        ["a,b", "b,a", "c"],
        ["", ",", ",,", ";"],
        [],
    ],
)
def test_other_labels_are_not_remarked_on(labels: list[str]) -> None:
    assert describe_form(find_form(labels)) == []
