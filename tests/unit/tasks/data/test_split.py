"""Which split a row belongs to: a function of row and seed; each split and each class gets rows, or it is an error."""

import datetime
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from storage.datasets import SPLITS
from storage.errors import ContractError
from tasks.configuration.run import DataConfig
from tasks.data.class_order import order_labels
from tasks.data.contract.rules import row_rules
from tasks.data.split import Assignment, assign_samples
from tasks.data.sql import only_row
from tests.helpers.parquet import open_samples, text_columns, text_config, write_parquet

BEGIN = datetime.datetime(2026, 1, 1)


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        yield opened


def assigned(connection: duckdb.DuckDBPyConnection, config: DataConfig) -> Assignment:
    return assign_samples(connection, open_samples(connection, config), config)


def splits_by_id(connection: duckdb.DuckDBPyConnection, config: DataConfig) -> dict[str, str]:
    """The name of each row's split by the row's id."""
    assigned(connection, config)
    rows = connection.execute("SELECT id, split FROM assigned").fetchall()
    connection.execute("DROP VIEW assigned")
    return {sample: SPLITS[index] for sample, index in rows}


def hours(count: int) -> list[datetime.datetime]:
    """One time for each row, the newest first."""
    return [BEGIN + datetime.timedelta(hours=count - i) for i in range(count)]


def test_the_fractions_are_kept_within_chance_and_the_counts_are_of_the_training_split(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection
) -> None:
    source = write_parquet(tmp_path / "a.parquet", text_columns(6000))
    split = {"validation_fraction": 0.2, "test_fraction": 0.05}
    found = assigned(connection, text_config(source, split=split))
    assert sum(found.num_rows) == 6000 and [sum(counts) for counts in found.class_counts] == found.num_rows
    assert found.classes == ["billing", "travel", "work"]
    for name, fraction in (("train", 0.75), ("validation", 0.2), ("test", 0.05)):
        deviation = math.sqrt(6000 * fraction * (1 - fraction))
        assert abs(found.num_rows[SPLITS.index(name)] - 6000 * fraction) < 4 * deviation


def test_a_row_keeps_its_split_whatever_rows_and_files_are_around_it(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection
) -> None:
    few = text_config(write_parquet(tmp_path / "few" / "a.parquet", text_columns(200, first=300)))
    write_parquet(tmp_path / "many" / "z.parquet", {k: v[::-1] for k, v in text_columns(400).items()})
    write_parquet(tmp_path / "many" / "a.parquet", text_columns(200, first=400))
    many = splits_by_id(connection, text_config(tmp_path / "many"))
    connection.execute("SET threads = 1")
    assert splits_by_id(connection, few).items() <= many.items()
    assert len(many) == 600


def test_another_seed_deals_other_rows(tmp_path: Path, connection: duckdb.DuckDBPyConnection) -> None:
    source = write_parquet(tmp_path / "a.parquet", text_columns(300))
    one, other = (splits_by_id(connection, text_config(source, seed=seed)) for seed in (1, 2))
    assert one.keys() == other.keys() and one != other


def test_all_rows_of_one_value_of_a_column_stay_together(tmp_path: Path, connection: duckdb.DuckDBPyConnection) -> None:
    columns = {**text_columns(600), "customer": [i // 10 for i in range(600)]}
    split = {"by": "column", "column": "customer"}
    source = write_parquet(tmp_path / "a.parquet", columns)
    found = splits_by_id(connection, text_config(source, split=split))
    for customer in range(60):
        assert len({found[f"s{i:05d}"] for i in range(10 * customer, 10 * customer + 10)}) == 1
    assert set(found.values()) == set(SPLITS)


def test_by_time_the_newest_rows_are_the_test_and_the_next_the_validation(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection
) -> None:
    split = {"by": "time", "column": "at", "validation_fraction": 0.2, "test_fraction": 0.1}
    source = write_parquet(tmp_path / "a.parquet", {**text_columns(100), "at": hours(100)})
    found = splits_by_id(connection, text_config(source, split=split))
    in_order = [found[f"s{i:05d}"] for i in range(100)]
    assert in_order == ["test"] * 10 + ["validation"] * 20 + ["train"] * 70


def test_rows_of_one_time_go_to_the_newer_side_of_a_cut_together(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection
) -> None:
    times = hours(100)
    times[5:25] = [times[9]] * 20  # the cut of the test split is between rows 9 and 10
    split = {"by": "time", "column": "at", "validation_fraction": 0.2, "test_fraction": 0.1}
    source = write_parquet(tmp_path / "a.parquet", {**text_columns(100), "at": times})
    counts = Counter(splits_by_id(connection, text_config(source, split=split)).values())
    assert counts == {"test": 25, "validation": 5, "train": 70}


def given(column: list[Any], **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The columns of a table whose column `part` names the split of each row, and the configuration that says so."""
    return {**text_columns(len(column)), "part": column}, {"by": "given", "column": "part", **options}


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (["train", "validation", "test"], {}),
        (["Training", "VAL", " test "], {}),
        (["TRAIN", "dev", "testing"], {}),
        (["train", "dev", "eval"], {"test_values": ["eval"]}),
        (["train", "eval", "test"], {"validation_values": ["eval"]}),
        ([0, 8, 9], {"train_values": [*range(8)], "validation_values": [8], "test_values": [9]}),
        (["T", "t", "x"], {"train_values": ["T"], "validation_values": ["t"], "test_values": ["x"]}),
    ],
)
def test_a_column_says_which_split_a_row_belongs_to(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection, names: list[Any], options: dict[str, Any]
) -> None:
    columns, split = given([names[0 if i % 10 < 7 else i % 2 + 1] for i in range(90)], **options)
    config = text_config(write_parquet(tmp_path / "a.parquet", columns), split=split)
    found = splits_by_id(connection, config)
    for rule in row_rules(config):
        assert only_row(connection, f"SELECT count(*) FILTER (WHERE {rule.broken}) FROM samples") == (0,)
    assert found == {f"s{i:05d}": "train" if i % 10 < 7 else SPLITS[i % 2 + 1] for i in range(90)}


def test_neither_seed_nor_the_other_rows_change_a_split_that_is_given(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection
) -> None:
    columns, split = given(["train", "train", "dev", "dev", "test", "train"] * 10)
    write_parquet(tmp_path / "all" / "b.parquet", {name: values[::-1] for name, values in columns.items()})
    few = text_config(write_parquet(tmp_path / "a.parquet", {n: v[:30] for n, v in columns.items()}), split=split)
    every = splits_by_id(connection, text_config(tmp_path / "all", split=split, seed=7))
    assert splits_by_id(connection, few).items() <= every.items() and len(every) == 60


def test_a_split_that_no_row_names_is_an_error_with_the_values_that_there_are(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection
) -> None:
    columns, split = given(["train"] * 60 + ["test"] * 30)
    with pytest.raises(ContractError) as caught:
        assigned(connection, text_config(write_parquet(tmp_path / "a.parquet", columns), split=split))
    message = str(caught.value)
    assert message.startswith("The validation split would be empty.")
    counts = "train 60, validation 0, test 30 (as column 'part' says: 'train' in 60 rows, 'test' in 30 rows)"
    assert counts in message and "data.split.train_values" in message


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([10, 9, 2], ["2", "9", "10"]),
        (["10", "9", "b"], ["9", "10", "b"]),
        (["level 10", "level 2", "level 1"], ["level 1", "level 2", "level 10"]),
        (["1.5", "-2", "1.25"], ["-2", "1.25", "1.5"]),
        (["10.5", "9.5", "-1"], ["-1", "9.5", "10.5"]),
        (["a2b10", "a2b9", "a10"], ["a2b9", "a2b10", "a10"]),
        (["nan", "inf", "2"], ["2", "inf", "nan"]),
        (["1", "01", "x"], ["01", "1", "x"]),
        (["9" * 5000, "8", "y"], ["8", "9" * 5000, "y"]),
        (["spam", "Other", "ham"], ["Other", "ham", "spam"]),
    ],
)
def test_classes_are_in_natural_order(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection, labels: list[Any], expected: list[str]
) -> None:
    source = write_parquet(tmp_path / "a.parquet", {**text_columns(300), "domain": labels * 100})
    assert assigned(connection, text_config(source)).classes == expected


def test_labels_of_one_value_have_one_order_in_every_process() -> None:
    labels = {"1", "01", "001", "+1"}
    assert {tuple(order_labels(order)) for order in itertools.permutations(labels)} == {("+1", "001", "01", "1")}


@pytest.mark.parametrize(
    ("changes", "times", "message"),
    [
        ({}, [BEGIN] * 100, "The train and the validation split would be empty"),
        ({"domain": ["work"] * 100}, hours(100), "'domain' has one class only"),
        ({"domain": ["rare"] * 9 + ["work", "travel"] * 45 + ["work"]}, hours(100), r"none of 'rare' \(9 rows\)"),
    ],
    ids=["one time", "one class", "a class in the test split alone"],
)
def test_what_nothing_can_be_learnt_or_measured_from_is_an_error_with_the_counts(
    tmp_path: Path,
    connection: duckdb.DuckDBPyConnection,
    changes: dict[str, Any],
    times: list[datetime.datetime],
    message: str,
) -> None:
    columns = {**text_columns(100), "at": pa.array(times), **changes}
    config = text_config(write_parquet(tmp_path / "a.parquet", columns), split={"by": "time", "column": "at"})
    with pytest.raises(ContractError, match=message):
        assigned(connection, config)
