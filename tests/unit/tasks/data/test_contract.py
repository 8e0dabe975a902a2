"""The contract: what each rule counts, and in which order rules speak."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from storage.errors import ContractError
from tasks.configuration.run import DataConfig
from tasks.data.contract.label_advice import advise_on_labels
from tasks.data.contract.repeats import count_repeats
from tasks.data.contract.violations import require_rules_kept
from tasks.data.labels import domain_of
from tasks.data.sources.columns import SourceTable
from tests.helpers.parquet import (
    measure_samples,
    open_samples,
    text_columns,
    text_config,
    token_columns,
    token_config,
    write_parquet,
)


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        yield opened


def checked(connection: duckdb.DuckDBPyConnection, config: DataConfig) -> SourceTable:
    """Check the files that a configuration names; the table, if they keep the contract."""
    table = open_samples(connection, config)
    measured = measure_samples(connection, table, config)
    advice = partial(advise_on_labels, connection=connection, config=config)
    require_rules_kept(table, config, measured, count_repeats(connection, "samples"), advice)
    return table


def broken(connection: duckdb.DuckDBPyConnection, config: DataConfig) -> str:
    with pytest.raises(ContractError) as caught:
        checked(connection, config)
    return str(caught.value)


def test_good_data_keep_the_contract(tmp_path: Path, connection: duckdb.DuckDBPyConnection) -> None:
    for part in range(3):
        write_parquet(tmp_path / "text" / f"{part}.parquet", text_columns(50, first=50 * part))
    metadata: dict[str, Any] = {"numeric": ["length", "score"], "categorical": ["region"]}
    assert checked(connection, text_config(tmp_path / "text", **metadata)).num_rows_total == 150
    tokens = write_parquet(tmp_path / "tokens.parquet", token_columns(50))
    assert checked(connection, token_config(tokens)).num_rows == [50]


def test_an_error_counts_the_rows_of_each_file_and_shows_three_of_them(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection
) -> None:
    for part, num_bad in enumerate((0, 1, 5)):
        columns = text_columns(50, first=50 * part)
        columns["domain"] = ["wether"] * num_bad + columns["domain"][num_bad:]
        write_parquet(tmp_path / f"{part}.parquet", columns)
    message = broken(connection, text_config(tmp_path, classes=["billing", "travel", "work"]))
    assert "6 of 150 rows: 1.parquet has 1 (row 0, id 's00050' has 'wether'); 2.parquet has 5 (" in message
    assert message.count("has 'wether'") == 4
    assert "0.parquet" not in message


def test_the_first_broken_rule_is_the_error_and_the_others_are_named(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection
) -> None:
    columns = text_columns(50)
    columns["score"] = pa.array([float("inf")] * 50)
    columns["text"] = [*columns["text"][:-1], None]
    columns["sample_id"] = ["twice"] * 2 + columns["sample_id"][2:]
    source = write_parquet(tmp_path / "a.parquet", columns)
    message = broken(connection, text_config(source, numeric=["score"]))
    assert message.startswith("Column 'text' breaks the contract: missing text")
    assert "also broken: score: infinite; sample_id: duplicate ids" in message


def test_the_worst_duplicates_are_shown(tmp_path: Path, connection: duckdb.DuckDBPyConnection) -> None:
    columns = text_columns(50)
    columns["sample_id"] = ["twice"] * 2 + ["often"] * 5 + columns["sample_id"][7:]
    source = write_parquet(tmp_path / "a.parquet", columns)
    assert "5 rows too many, for 2 ids: 'often' in 5 rows, 'twice' in 2 rows" in broken(connection, text_config(source))


@pytest.mark.parametrize(
    ("labels", "options", "domain"),
    [
        ([True, False], {}, ["false", "true"]),
        ([True, False], {"classes": ["0", "1"]}, ["0", "1"]),
        ([True, False], {"class_names": ["ham", "spam"]}, ["0", "1"]),
        (["true", "false"], {}, ["false", "true"]),
        (["0", "1"], {}, ["0", "1"]),
        ([0, 1], {}, ["0", "1"]),
        ([True, False], {"classes": ["false", "true"]}, ["false", "true"]),
        (["no", "yes"], {"classes": ["no", "yes"]}, ["no", "yes"]),
    ],
)
def test_a_binary_label_may_be_a_boolean_a_number_or_text(
    tmp_path: Path,
    connection: duckdb.DuckDBPyConnection,
    labels: list[Any],
    options: dict[str, Any],
    domain: list[str],
) -> None:
    columns = token_columns(50) | {"label": [labels[i % 2] for i in range(50)]}
    config = token_config(write_parquet(tmp_path / "a.parquet", columns), **options)
    checked(connection, config)
    found = {label for (label,) in connection.execute("SELECT DISTINCT label FROM samples").fetchall()}
    assert domain_of(found, config) == domain and found == set(domain)


def test_true_in_capitals_as_text_is_outside_the_domain(tmp_path: Path, connection: duckdb.DuckDBPyConnection) -> None:
    columns = token_columns(50) | {"label": ["True", "False"] * 25}
    source = write_parquet(tmp_path / "a.parquet", columns)
    wanted = 'list both in data.classes, the one to detect as the second: classes = ["False", "True"]'
    assert wanted in broken(connection, token_config(source))


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        (["ham", "spam", "ham", "ham", "ham"], 'the one to detect as the second: classes = ["ham", "spam"]'),
        (["spam", "ham", "spam", "spam", "spam"], 'the one to detect as the second: classes = ["spam", "ham"]'),
        (["b", "a", "d", "c", "e"], 'set data.kind = "multiclass", since the column has 5 different labels'),
        (["0", "1", "2", "1", "0"], "3 different labels ('0', '1', '2'); or, if two are meant, correct the others"),
    ],
)
def test_labels_that_are_none_of_a_binary_target_are_named_in_what_to_do(
    labels: list[str], wanted: str, tmp_path: Path, connection: duckdb.DuckDBPyConnection
) -> None:
    columns = token_columns(50) | {"label": labels * 10}
    assert wanted in broken(connection, token_config(write_parquet(tmp_path / "a.parquet", columns)))
