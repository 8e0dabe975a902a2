"""Statistics and vocabularies of the metadata, taken from the training split alone.

Invariant: the same data give the same bits, whatever the number of threads: sums of floats are taken by one thread in
the order of the rows; everything else here does not depend on order.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import duckdb
import numpy as np

from storage.datasets import CategoricalColumn, NumericColumn
from tasks.configuration.run import DataConfig
from tasks.data.sources.messages import broken_contract
from tasks.data.split import TRAIN
from tasks.data.sql import only_row

MAX_CATEGORIES = 1000
LARGEST_SCALED = float(np.finfo(np.float32).max)


def measure_numeric(connection: duckdb.DuckDBPyConnection, config: DataConfig) -> list[NumericColumn]:
    """Mean, deviation and median of each numeric column over the values that are there."""
    if not config.numeric:
        return []
    moments = ", ".join(f"avg(n{i}), stddev_pop(n{i}), count(n{i})" for i in range(len(config.numeric)))
    with one_thread(connection):
        row = only_row(connection, f"SELECT count(*), {moments} FROM assigned WHERE split = {TRAIN}")
    ranges = ", ".join(f"min(n{i}), max(n{i})" for i in range(len(config.numeric)))
    of_all = only_row(connection, f"SELECT {ranges} FROM assigned")
    columns = []
    for i, column in enumerate(config.numeric):
        mean, deviation, count = row[3 * i + 1 : 3 * i + 4]
        found = _numeric_column(column, mean, deviation, count, _median(connection, i, count), row[0])
        require_scalable(found, of_all[2 * i : 2 * i + 2])
        columns.append(found)
    return columns


def measure_weight(connection: duckdb.DuckDBPyConnection, config: DataConfig) -> float | None:
    """The mean weight of the training split's rows; None where rows have none.

    Raises `ContractError` where all weights there are 0, or one is too large beside them.
    """
    if config.weight is None:
        return None
    with one_thread(connection):
        (mean,) = only_row(connection, f"SELECT avg(weight) FROM assigned WHERE split = {TRAIN}")
    (largest,) = only_row(connection, "SELECT max(weight) FROM assigned")
    if not mean or not math.isfinite(mean) or largest / mean > LARGEST_SCALED:
        raise broken_contract(
            f"Column {config.weight!r} has weights that cannot be divided by their mean.",
            "a mean over the training split that is more than 0, and no weight that is too large beside it",
            f"a mean of {mean}, and {largest} as the largest weight",
            "give rows of the training split weights above 0, or take data.weight out",
        )
    return float(mean)


def measure_categorical(connection: duckdb.DuckDBPyConnection, config: DataConfig) -> list[CategoricalColumn]:
    """The most frequent values of each categorical column over the values that are there."""
    return [_categorical_column(connection, i, column) for i, column in enumerate(config.categorical)]


@contextmanager
def one_thread(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """A block in which sums are taken in the order of the rows."""
    (threads,) = only_row(connection, "SELECT current_setting('threads')")
    connection.execute("SET threads = 1")
    try:
        yield
    finally:
        connection.execute(f"SET threads = {threads}")


def _median(connection: duckdb.DuckDBPyConnection, index: int, count: int) -> float | None:
    # Of the one or two values in the middle: to find them DuckDB sorts, on disk where memory does not suffice, while
    # its median holds all values of the column in memory.
    values = f"SELECT n{index} AS n FROM assigned WHERE split = {TRAIN} AND n{index} IS NOT NULL ORDER BY n"
    middle = f"LIMIT {2 - count % 2} OFFSET {max(0, count - 1) // 2}"
    (median,) = only_row(connection, f"SELECT median(n) FROM ({values} {middle})")
    return None if median is None else float(median)


def _numeric_column(
    name: str, mean: float | None, deviation: float | None, count: int, median: float | None, num_rows: int
) -> NumericColumn:
    if mean is None or deviation is None or median is None:
        mean, deviation, median = 0.0, 1.0, 0.0
    if not (math.isfinite(mean) and math.isfinite(deviation)):
        raise _too_large(name)
    # A constant column has no information: dividing by 1 makes it 0 everywhere.
    return NumericColumn(
        name=name, mean=mean, standard_deviation=deviation or 1.0, median=median, missing_share=1 - count / num_rows
    )


def require_scalable(column: NumericColumn, extremes: Sequence[float | None]) -> None:
    """Raise `ContractError` if a row of any split has a value that is no number any more once it is scaled."""
    for value in extremes:
        if value is not None and not abs((value - column.mean) / column.standard_deviation) <= LARGEST_SCALED:
            raise broken_contract(
                f"Column {column.name!r} has numbers too large to be scaled.",
                f"numbers whose distance from the mean, {column.mean:g}, is below 3.4e38 times the standard deviation, "
                f"{column.standard_deviation:g}",
                f"{value:g}",
                "correct these rows, scale the column, or take its logarithm",
            )


def _too_large(name: str) -> Exception:
    return broken_contract(
        f"Column {name!r} has numbers too large to be averaged.",
        "numbers well below 1e150",
        "a sum beyond 1e308",
        "scale the column, or take its logarithm",
    )


def _categorical_column(connection: duckdb.DuckDBPyConnection, index: int, name: str) -> CategoricalColumn:
    values = connection.execute(
        f"SELECT c{index} AS value FROM assigned WHERE split = {TRAIN} AND value IS NOT NULL "
        f"GROUP BY value ORDER BY count(*) DESC, value LIMIT {MAX_CATEGORIES}"
    ).fetchall()
    query = f"SELECT count(*) FILTER (WHERE c{index} IS NULL) / count(*) FROM assigned WHERE split = {TRAIN}"
    (share,) = only_row(connection, query)
    return CategoricalColumn(name=name, vocabulary=[value for (value,) in values], missing_share=share)
