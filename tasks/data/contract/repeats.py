"""Ids that several rows have. Where ids are equal, places in the order are: numbers, which are looked at first.

Invariant: what is found does not depend on the number of files or ranges, and memory grows with the places that are
repeated alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import duckdb
import numpy as np
from numpy.typing import NDArray

from tasks.data.sql import only_row

PLACE = np.dtype("<u8")
NUM_EXAMPLES = 3


class Repeats(NamedTuple):
    """How many ids several rows have, how many rows too many these are, and the worst ids with their rows."""

    num_ids: int
    num_surplus: int
    worst: list[tuple[str, int]]


def write_positions(places: NDArray[np.uint64], path: Path) -> None:
    """Leave the places of some rows, in any order, for `repeated_positions`."""
    np.sort(places).astype(PLACE, copy=False).tofile(path)


def repeated_positions(paths: Sequence[Path], num_at_a_time: int) -> NDArray[np.uint64]:
    """The places that more than one row has, each once, in order; `paths` are of `write_positions`.

    Places are spread evenly, so a range of them has few enough to be sorted in memory, which takes less time than
    DuckDB's GROUP BY. Of each sorted file a range is one slice.
    """
    files = [_positions_in(path) for path in paths]
    num_ranges = max(1, -(-sum(map(len, files)) // num_at_a_time))
    firsts = np.array([(i << 64) // num_ranges for i in range(num_ranges)], PLACE)
    edges = [[*np.searchsorted(file, firsts).tolist(), len(file)] for file in files]
    found = [np.empty(0, PLACE)]
    for i in range(num_ranges):
        slices = [file[edge[i] : edge[i + 1]] for file, edge in zip(files, edges, strict=True)]
        # Of a place that very many rows have, each file gives one: else a range of places could have any number.
        within = [_again(places) for places in slices]
        slices = [np.unique(places) if len(again) else places for places, again in zip(slices, within, strict=True)]
        places = np.concatenate([np.empty(0, PLACE), *slices])
        places.sort(kind="stable")  # which takes runs that are sorted as they are
        found.append(np.unique(np.concatenate([_again(places), *map(np.unique, within)])))
    return np.concatenate(found)


def _again(places: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Those of sorted places that are like the one before."""
    again: NDArray[np.uint64] = places[1:][places[1:] == places[:-1]]
    return again


def has_any(path: Path, places: NDArray[np.uint64]) -> bool:
    """Whether a file of `write_positions` has one of these places, which are in order."""
    found = _positions_in(path)
    nearest = np.searchsorted(places, found).clip(max=len(places) - 1)
    return bool(np.any(places[nearest] == found))


def _positions_in(path: Path) -> NDArray[np.uint64]:
    # Without a byte there is nothing to map.
    return np.memmap(path, PLACE, mode="r") if path.stat().st_size else np.empty(0, PLACE)


def count_repeats(connection: duckdb.DuckDBPyConnection, rows: str) -> Repeats:
    """What is repeated in the column `id` of a table or view."""
    query = (
        f"WITH twice AS (SELECT id, count(*) AS n FROM {rows} GROUP BY id HAVING n > 1) "
        f"SELECT count(*), coalesce(sum(n - 1), 0)::BIGINT, min({{'n': -n, 'id': id}}, {NUM_EXAMPLES}) FROM twice"
    )
    num_ids, num_surplus, worst = only_row(connection, query)
    return Repeats(num_ids, num_surplus, [(entry["id"], -entry["n"]) for entry in worst or []])
