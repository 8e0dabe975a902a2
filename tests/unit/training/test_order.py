"""The order of samples: a permutation for every epoch, whatever the sizes, and the same for ever."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.objects.digests import sha256_of_bytes
from training.data.order import SampleOrder


@settings(max_examples=150, deadline=None)
@given(num_rows=st.integers(1, 700), group_rows=st.integers(1, 40), seed=st.integers(0, 5), epoch=st.integers(0, 3))
def test_every_epoch_has_every_row_exactly_once(num_rows: int, group_rows: int, seed: int, epoch: int) -> None:
    order = SampleOrder(num_rows, group_rows, seed)
    rows = order.rows(epoch * num_rows, num_rows)
    assert sorted(rows.tolist()) == list(range(num_rows))


@settings(max_examples=100, deadline=None)
@given(
    num_rows=st.integers(1, 300),
    group_rows=st.integers(1, 20),
    cursor=st.integers(0, 900),
    counts=st.lists(st.integers(0, 90), max_size=6),
)
def test_the_order_does_not_depend_on_how_it_is_cut_into_batches(
    num_rows: int, group_rows: int, cursor: int, counts: list[int]
) -> None:
    order = SampleOrder(num_rows, group_rows, seed=3)
    whole = order.rows(cursor, sum(counts)).tolist()
    parts: list[int] = []
    for count in counts:
        parts += SampleOrder(num_rows, group_rows, seed=3).rows(cursor + len(parts), count).tolist()
    assert parts == whole


def test_epochs_and_seeds_give_different_orders() -> None:
    order = SampleOrder(2000, 64, seed=1)
    first, second = order.rows(0, 2000), order.rows(2000, 2000)
    other_seed = SampleOrder(2000, 64, seed=2).rows(0, 2000)
    assert (first != second).mean() > 0.9
    assert (first != other_seed).mean() > 0.9


def test_neighbours_in_the_order_come_from_few_row_groups() -> None:
    rows = SampleOrder(100_000, 100, seed=1).rows(5_000, 64)
    assert len(set((rows // 100).tolist())) <= 32


def test_the_order_is_the_one_that_runs_in_progress_were_started_with() -> None:
    rows = SampleOrder(10_000, 256, seed=7).rows(9_990, 64).astype("<i8")
    assert sha256_of_bytes(rows.tobytes()) == "b729f8b7ddf54624b64ef3d0727773f60d35c3c29fe2e98c21dfcb3d96dc3b54"


@pytest.mark.parametrize(("num_rows", "group_rows"), [(0, 10), (10, 0)])
def test_an_order_of_nothing_is_refused(num_rows: int, group_rows: int) -> None:
    with pytest.raises(ValueError, match="rows"):
        SampleOrder(num_rows, group_rows, seed=0)


def test_a_permutation_has_no_favourite_places() -> None:
    first_rows = [int(SampleOrder(50, 10, seed).rows(0, 1)[0]) for seed in range(400)]
    counts = np.bincount(first_rows, minlength=50)
    assert counts.min() >= 1
    assert counts.max() <= 25


def test_an_order_is_the_same_for_a_cursor_of_any_kind_of_integer() -> None:
    order = SampleOrder(1000, 16, seed=3)
    assert np.array_equal(order.rows(np.int64(40), np.int64(24)), order.rows(40, 24))  # type: ignore[arg-type]
