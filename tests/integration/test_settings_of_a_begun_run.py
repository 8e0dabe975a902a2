"""What a run keeps of its data's settings where its file says nothing any more, and what it refuses."""

import inspect
import logging
from pathlib import Path
from typing import Any

import duckdb
import pytest

from storage.errors import IncompatibleRunError
from tasks.config.load import change_values, configure, load_configuration
from tasks.configuration.run import RunConfig
from tasks.data.progress import run_plainly
from tasks.data.sources.columns import inspect_files
from tasks.data.sources.files import find_files
from tasks.data.sources.samples_sql import samples_sql
from tasks.prepare import prepare_data
from tasks.recover import recover
from tests.helpers.parquet import text_columns, text_config, write_parquet
from tests.helpers.tiny_runs import write_tiny_configuration

prepare_work, recover_work = inspect.unwrap(prepare_data), inspect.unwrap(recover)


@pytest.fixture(autouse=True)
def without_prefect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.prepare._run_part", run_plainly)


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """Of a file that names no column with ids."""
    write_parquet(tmp_path / "source" / "a.parquet", {**text_columns(120), "code": [0, 1, 2] * 40})
    path = write_tiny_configuration(tmp_path, "run", tmp_path / "store", tmp_path / "source")
    path.write_text(path.read_text().replace('id = "sample_id"\n', ""))
    return load_configuration(path)


def changed(config: RunConfig, *assignments: str) -> RunConfig:
    values = config.model_dump(mode="json", exclude_unset=True)
    return configure(RunConfig, change_values(values, list(assignments)), "configuration")


def test_a_run_keeps_what_identifies_its_rows_and_the_names_of_its_classes_and_takes_no_others(
    config: RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    silent = changed(config, "data.label=code")
    named = changed(silent, "data.id=sample_id", 'data.class_names=["world", "sports", "business"]')
    dataset, _ = prepare_work(named)
    state, _ = recover_work(named, dataset)
    assert dataset.target.classes == ["world", "sports", "business"]
    with caplog.at_level(logging.INFO, "holdfast"):
        assert prepare_work(silent)[0] == dataset and recover_work(silent, dataset)[0] == state
    assert "data.id is not set: the run keeps the column 'sample_id', with which it was begun." in caplog.text
    assert "Configuration changed" not in caplog.text
    for assignment, message in (
        ('data.class_names=["a", "b", "c"]', r"data\.class_names: was \['world'"),
        ("data.id=text", r"data\.id: was 'sample_id', is"),
        ("train.padding_efficiency=0.5", r"train\.padding_efficiency: was 0\.97, is 0\.5 now"),
    ):
        with pytest.raises(IncompatibleRunError, match=message):
            prepare_work(changed(named, assignment, *(["data.text=region"] if "text" in assignment else [])))


def test_of_a_new_run_without_a_column_of_ids_it_is_said_once_that_rows_are_numbered(
    config: RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "holdfast"):
        dataset, _ = prepare_work(config)
        state, _ = recover_work(config, dataset)
        assert prepare_work(config)[0] == dataset
    assert caplog.text.count("data.id is not set: a row's id is its file and its row number.") == 1
    assert recover_work(config, dataset)[0] == state


def test_a_run_goes_on_with_the_split_that_it_was_given_and_with_no_other(config: RunConfig) -> None:
    source = Path(config.data.source) / "a.parquet"
    parts = ["train"] * 80 + ["dev", "test"] * 20
    write_parquet(source, {**text_columns(120), "part": parts})
    given = configure(
        RunConfig, config.model_dump(mode="json") | {"run": "given", "data": data_given(config)}, "configuration"
    )
    dataset, _ = prepare_work(given)
    assert {name: split.num_rows for name, split in dataset.splits.items()} == {
        "train": 80,
        "validation": 20,
        "test": 20,
    }
    state, _ = recover_work(given, dataset)
    assert prepare_work(given)[0] == dataset and recover_work(given, dataset)[0] == state
    with pytest.raises(IncompatibleRunError) as caught:
        prepare_work(changed(given, 'data.split={by = "id"}'))
    assert "data.split.by: was 'given', is 'id' now" in str(caught.value)
    assert "data.split.column: was 'part', is not set now" in str(caught.value)


def data_given(config: RunConfig) -> dict[str, Any]:
    return config.data.model_dump(mode="json") | {"split": {"by": "given", "column": "part"}}


def test_the_number_of_a_row_depends_on_the_order_of_files_and_rows_alone(tmp_path: Path) -> None:
    columns = text_columns(3000)
    half = {name: values[:1500] for name, values in columns.items()}, {n: v[1500:] for n, v in columns.items()}
    for folder, names, row_group_rows, threads in (("one", "ab", 1500, 1), ("far/other", "xy", 7, 4)):
        for name, part in zip(names, half, strict=True):
            write_parquet(tmp_path / folder / f"{name}.parquet", part, row_group_rows)
        config = text_config(tmp_path / folder, id=None)
        table = inspect_files(find_files(config.source), config)
        with duckdb.connect() as connection:
            connection.execute(f"SET threads = {threads}")
            found = connection.execute(f"SELECT text, id FROM ({samples_sql(table, config)})").fetchall()
        expected = {text: f"{row // 1500}:{row % 1500}" for row, text in enumerate(columns["text"])}
        assert dict(found) == expected and len(found) == 3000
