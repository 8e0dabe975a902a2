"""Which order keys several rows have: the same answer wherever rows are cut, however many are read at a time."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

from tasks.data.contract import repeats
from tasks.data.contract.repeats import _again, repeated_order_keys, write_order_keys


@pytest.mark.parametrize("num_at_a_time", [1, 7, 100, 10_000])
def test_places_that_several_rows_have_are_found(tmp_path: Path, num_at_a_time: int) -> None:
    generator = np.random.default_rng(num_at_a_time)
    largest = np.iinfo(np.uint64).max
    once = generator.integers(1, largest, 1000, dtype=np.uint64)
    twice = np.concatenate([once[:3], np.array([0, largest], np.uint64)])
    order_keys = generator.permutation(np.concatenate([once, twice, twice[3:], twice[:1]]))
    paths = [tmp_path / str(index) for index in range(6)]
    # A chunk of the source may have no row.
    chunks = [order_keys[:0], *np.split(order_keys, [1, 400, 400, 900])]
    for path, chunk in zip(paths, chunks, strict=True):
        write_order_keys(chunk, path)
    found, counts = np.unique(order_keys, return_counts=True)
    assert repeated_order_keys(paths, num_at_a_time).tolist() == found[counts > 1].tolist() == sorted(twice.tolist())


def test_rows_of_different_places_have_none_in_common(tmp_path: Path) -> None:
    write_order_keys(np.arange(100, dtype=np.uint64)[::-1], tmp_path / "order_keys")
    assert len(repeated_order_keys([tmp_path / "order_keys"], 10)) == 0
    assert len(repeated_order_keys([], 10)) == 0


def test_of_a_place_that_very_many_rows_have_few_are_looked_at_at_a_time(tmp_path: Path) -> None:
    paths = [tmp_path / str(index) for index in range(3)]
    for index, path in enumerate(paths):
        write_order_keys(np.array([7] * 100_000 + [1 << 60, index], np.uint64), path)
    looked_at: list[int] = []

    def note(order_keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        looked_at.append(len(order_keys))
        return _again(order_keys)

    with mock.patch.object(repeats, "_again", note):
        assert repeated_order_keys(paths, 10).tolist() == [7, 1 << 60]
    # The slices of files as they are on disk, and what is sorted of them in memory.
    assert sum(length > 10 for length in looked_at) == len(paths)
