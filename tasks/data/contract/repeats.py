"""Ids that several rows have. Where ids are equal, order keys are: numbers, which are looked at first.

Invariant: what is found does not depend on the number of files or ranges, and memory grows with the order keys that
are repeated alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import duckdb
import numpy as np
from numpy.typing import NDArray

from tasks.data.sql import only_row

ORDER_KEY = np.dtype("<u8")
NUM_EXAMPLES = 3


class Repeats(NamedTuple):
    """How many ids several rows have, how many rows too many these are, and the worst ids with their rows."""

    num_ids: int
    num_surplus: int
    worst: list[tuple[str, int]]


def write_order_keys(order_keys: NDArray[np.uint64], path: Path) -> None:
    """Leave the order keys of some rows, in any order, for `repeated_order_keys`."""
    np.sort(order_keys).astype(ORDER_KEY, copy=False).tofile(path)


def repeated_order_keys(paths: Sequence[Path], num_at_a_time: int) -> NDArray[np.uint64]:
    """The order keys that more than one row has, each once, in order; `paths` are of `write_order_keys`.

    Order keys are spread evenly, so a range of them has few enough to be sorted in memory, which takes less time than
    DuckDB's GROUP BY. Of each sorted file a range is one slice.
    """
    files = [_order_keys_in(path) for path in paths]
    num_ranges = max(1, -(-sum(map(len, files)) // num_at_a_time))
    firsts = np.array([(i << 64) // num_ranges for i in range(num_ranges)], ORDER_KEY)
    edges = [[*np.searchsorted(file, firsts).tolist(), len(file)] for file in files]
    found = [np.empty(0, ORDER_KEY)]
    for i in range(num_ranges):
        slices = [file[edge[i] : edge[i + 1]] for file, edge in zip(files, edges, strict=True)]
        # Of an order key that very many rows have, each file gives one: else a range could have any number.
        within = [_again(order_keys) for order_keys in slices]
        slices = [
            np.unique(order_keys) if len(again) else order_keys
            for order_keys, again in zip(slices, within, strict=True)
        ]
        order_keys = np.concatenate([np.empty(0, ORDER_KEY), *slices])
        order_keys.sort(kind="stable")  # which takes runs that are sorted as they are
        found.append(np.unique(np.concatenate([_again(order_keys), *map(np.unique, within)])))
    return np.concatenate(found)


def _again(order_keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Those of sorted order keys that are like the one before."""
    again: NDArray[np.uint64] = order_keys[1:][order_keys[1:] == order_keys[:-1]]
    return again


def has_any(path: Path, order_keys: NDArray[np.uint64]) -> bool:
    """Whether a file of `write_order_keys` has one of these order keys, which are in order."""
    found = _order_keys_in(path)
    nearest = np.searchsorted(order_keys, found).clip(max=len(order_keys) - 1)
    return bool(np.any(order_keys[nearest] == found))


def _order_keys_in(path: Path) -> NDArray[np.uint64]:
    # Without a byte there is nothing to map.
    return np.memmap(path, ORDER_KEY, mode="r") if path.stat().st_size else np.empty(0, ORDER_KEY)


def count_repeats(connection: duckdb.DuckDBPyConnection, rows: str) -> Repeats:
    """What is repeated in the column `id` of a table or view."""
    query = (
        f"WITH twice AS (SELECT id, count(*) AS n FROM {rows} GROUP BY id HAVING n > 1) "
        f"SELECT count(*), coalesce(sum(n - 1), 0)::BIGINT, min({{'n': -n, 'id': id}}, {NUM_EXAMPLES}) FROM twice"
    )
    num_ids, num_surplus, worst = only_row(connection, query)
    return Repeats(num_ids, num_surplus, [(entry["id"], -entry["n"]) for entry in worst or []])
