"""Statistics of the metadata: of the training split alone, the same bits each time, and of use whatever is missing."""

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from storage.errors import ContractError
from tasks.data import statistics as measured
from tasks.data.database import open_database
from tasks.data.split import TEST, TRAIN, VALIDATION
from tasks.data.statistics import measure_categorical, measure_numeric
from tests.helpers.parquet import text_config

FAR_AWAY = 1e9


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        yield opened


def assign(connection: duckdb.DuckDBPyConnection, split: list[int], **columns: Any) -> None:
    """The view that the statistics are taken from, as `assign_samples` leaves it."""
    connection.register("assigned", pa.table({"split": split, **columns}))


def numbers(values: list[float | None]) -> pa.Array:
    return pa.array(values, pa.float64())


def test_numbers_of_other_splits_do_not_reach_the_statistics(connection: duckdb.DuckDBPyConnection) -> None:
    values = [1.0, 2.0, 4.0, 9.0, None]
    split = [TRAIN] * 5 + [VALIDATION, TEST]
    assign(connection, split, n0=numbers([*values, FAR_AWAY, -FAR_AWAY]), c0=["a", "a", "b", "b", "a", "new", "other"])
    config = text_config("", numeric=["length"], categorical=["region"])
    (column,) = measure_numeric(connection, config)
    present = [value for value in values if value is not None]
    assert (column.name, column.mean, column.median) == ("length", statistics.mean(present), statistics.median(present))
    assert column.standard_deviation == pytest.approx(statistics.pstdev(present), rel=1e-15)
    assert column.missing_share == pytest.approx(1 / 5)
    (categories,) = measure_categorical(connection, config)
    assert (categories.name, categories.vocabulary, categories.missing_share) == ("region", ["a", "b"], 0.0)


@pytest.mark.parametrize(
    ("values", "mean", "share"), [([None, None], 0.0, 1.0), ([7.0, 7.0], 7.0, 0.0)], ids=["none is there", "constant"]
)
def test_a_column_that_tells_nothing_can_still_be_divided_by_its_deviation(
    connection: duckdb.DuckDBPyConnection, values: list[float | None], mean: float, share: float
) -> None:
    assign(connection, [TRAIN, TRAIN], n0=numbers(values))
    (column,) = measure_numeric(connection, text_config("", numeric=["length"]))
    assert (column.mean, column.standard_deviation, column.median, column.missing_share) == (mean, 1.0, mean, share)


@pytest.mark.parametrize("values", [[3.0], [2.0, 0.1], [5.0, 1.0, 2.0], [4.0, 0.3, 9.0, 0.1, 9.0, 7.0]])
def test_the_median_is_the_one_that_duckdb_gives_of_all_values(
    connection: duckdb.DuckDBPyConnection, values: list[float]
) -> None:
    assign(connection, [TRAIN] * (len(values) + 1), n0=numbers([*values, None]))
    (column,) = measure_numeric(connection, text_config("", numeric=["length"]))
    assert connection.execute("SELECT median(n0) FROM assigned").fetchall() == [(column.median,)]


def test_a_median_of_more_values_than_fit_into_memory_is_found_on_disk(tmp_path: Path) -> None:
    num_rows = 12_000_000
    with open_database("100MiB", tmp_path) as connection:
        connection.execute(
            f"CREATE VIEW assigned AS SELECT {TRAIN} AS split, (i * 7919 % {num_rows})::DOUBLE AS n0 "
            f"FROM range({num_rows}) t(i)"
        )
        (column,) = measure_numeric(connection, text_config("", numeric=["length"]))
    assert column.median == (num_rows - 1) / 2


def test_numbers_that_cannot_be_averaged_are_an_error_that_names_the_column(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    assign(connection, [TRAIN] * 3, n0=numbers([1.0, 2.0, 3.0]), n1=numbers([1e308, 1e308, 1e308]))
    with pytest.raises(ContractError, match="Column 'score' has numbers too large"):
        measure_numeric(connection, text_config("", numeric=["length", "score"]))


def test_the_bits_of_the_mean_do_not_depend_on_the_number_of_threads(connection: duckdb.DuckDBPyConnection) -> None:
    rows = 500_000  # several of the pieces that DuckDB gives to its threads
    connection.execute(
        f"CREATE TEMP TABLE assigned AS SELECT {TRAIN} AS split, sin(i) * 10 ** (i % 30) AS n0 FROM range({rows}) t(i)"
    )
    found = []
    for threads in (1, 4):
        connection.execute(f"SET threads = {threads}")
        found += measure_numeric(connection, text_config("", numeric=["length"]))
        assert connection.execute("SELECT current_setting('threads')").fetchall() == [(threads,)]
    assert found[0] == found[1]


def test_a_vocabulary_is_sorted_by_frequency_then_by_value_and_is_bounded(
    connection: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "MAX_CATEGORIES", 3)
    values = ["d", "c", "b", "a", "b", "c", "c", None]
    assign(connection, [TRAIN] * 8, c0=values)
    (column,) = measure_categorical(connection, text_config("", categorical=["region"]))
    assert column.vocabulary == ["c", "b", "a"] and column.missing_share == pytest.approx(1 / 8)


@pytest.mark.parametrize("value", [1.797e308, -1.797e308, 1e60, 3.5e38])
def test_a_number_of_another_split_that_is_none_once_it_is_scaled_is_an_error(
    connection: duckdb.DuckDBPyConnection, value: float
) -> None:
    split = [TRAIN] * 4 + [VALIDATION]
    assign(connection, split, n0=numbers([0.1, 0.2, 0.3, 0.4, value]))
    with pytest.raises(ContractError, match=r"'length' has numbers too large to be scaled[\s\S]*found: "):
        measure_numeric(connection, text_config("unused", numeric=["length"]))
