"""A deployment without a schedule of its own begins a flow run every five minutes, and seldom when another one does."""

from collections import Counter
from datetime import timedelta

import pytest
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule

from flows.deploying.schedules import INTERVAL, ORIGIN, describe_schedule, make_schedule
from storage.errors import ConfigurationError

RUNS = [f"s3://team-{number % 10}/holdfast/runs/run-{number:02d}" for number in range(50)]


def second_of(schedule: object) -> int:
    """Of the five minutes."""
    assert isinstance(schedule, IntervalSchedule)
    return int(schedule.anchor_date.timestamp() - ORIGIN.timestamp())


def test_fifty_runs_begin_their_flow_runs_at_many_seconds_and_each_always_at_the_same() -> None:
    seconds = [second_of(make_schedule(None, run)) for run in RUNS]
    assert seconds == [second_of(make_schedule(None, run)) for run in RUNS]
    assert all(0 <= second < INTERVAL.total_seconds() for second in seconds)
    assert max(Counter(seconds).values()) <= 3
    # In each minute of the five some, and in none half of them.
    in_minutes = Counter(second // 60 for second in seconds)
    assert sorted(in_minutes) == [0, 1, 2, 3, 4] and max(in_minutes.values()) < len(RUNS) / 2


def test_a_cron_line_is_taken_as_it_stands() -> None:
    schedule = make_schedule("*/20 * * * *", RUNS[0])
    assert isinstance(schedule, CronSchedule)
    assert (schedule.cron, schedule.timezone) == ("*/20 * * * *", "UTC")
    assert describe_schedule(schedule) == '"*/20 * * * *" in UTC'


@pytest.mark.parametrize("cron", ["", "every day", "* * * * * *"])
def test_what_is_no_cron_line_is_refused(cron: str) -> None:
    with pytest.raises(ConfigurationError, match="five fields"):
        make_schedule(cron, RUNS[0])


def test_it_is_said_when_they_begin() -> None:
    def described(second: int, interval: timedelta = INTERVAL) -> str:
        return describe_schedule(IntervalSchedule(interval=interval, anchor_date=ORIGIN + timedelta(seconds=second)))

    assert described(143) == "every 5 minutes: 00:02:23, 00:07:23 and so on in UTC"
    assert described(143 + 3600) == described(143 - 3600) == described(143)
    assert described(0, timedelta(hours=1)) == "another kind of schedule"
