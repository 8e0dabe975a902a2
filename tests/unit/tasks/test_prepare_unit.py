"""How many units of a preparation one Prefect task does."""

from itertools import pairwise

import pytest

from tasks.prepare_unit import MOST_TOGETHER, sizes_of_tasks


@pytest.mark.parametrize("num_units", [0, 1, 2, 3, 7, 40, 1_467])
@pytest.mark.parametrize("num_at_a_time", [1, 2, 16, 2_000])
def test_each_unit_is_done_once_in_tasks_that_become_smaller(num_units: int, num_at_a_time: int) -> None:
    sizes = sizes_of_tasks(num_units, num_at_a_time)
    assert sum(sizes) == num_units
    assert all(1 <= size <= MOST_TOGETHER for size in sizes)
    assert all(before >= after for before, after in pairwise(sizes))


def test_no_process_is_without_work_while_another_one_has_several_units_to_do() -> None:
    for num_units in range(1, 100):
        for num_at_a_time in range(1, 20):
            sizes = sizes_of_tasks(num_units, num_at_a_time)
            assert len(sizes) >= min(num_units, num_at_a_time)
            assert sizes[-num_at_a_time:] == [1] * min(len(sizes), num_at_a_time)
