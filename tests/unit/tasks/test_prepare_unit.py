"""How many units of a preparation one Prefect task does, and how many processes do them."""

from itertools import pairwise

import pytest
from prefect.task_runners import ThreadPoolTaskRunner

from tasks.configuration.run import DataConfig, PrepareConfig
from tasks.prepare_unit import MOST_TOGETHER, PrefectUnits, sizes_of_tasks


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


def test_there_are_no_more_processes_than_this_one_may_use_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {7})
    data = DataConfig(text="text", label="label", kind="binary", memory_limit="64GB")
    with PrefectUnits(data, PrepareConfig())._task_runner() as task_runner:
        assert isinstance(task_runner, ThreadPoolTaskRunner)
        assert task_runner._max_workers == 1
