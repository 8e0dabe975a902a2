"""When the flow runs of a deployment begin: by a cron line that is given, else every five minutes.

Invariant: without a line, a run's flow runs always begin at the same seconds, which are seldom those of another run.
"""

import hashlib
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from prefect.client.schemas.schedules import SCHEDULE_TYPES, CronSchedule, IntervalSchedule
from pydantic import ValidationError

from storage.errors import ConfigurationError

Schedule = CronSchedule | IntervalSchedule
TIMEZONE = "UTC"
INTERVAL = timedelta(minutes=5)
# From here on five minutes are counted: each hour of UTC begins with one.
ORIGIN = datetime(2020, 1, 1, tzinfo=UTC)
MOST_FIELDS = 5


def make_schedule(cron: str | None, run: str) -> Schedule:
    """The schedule of the deployment of a run, by the run's address.

    Raises `ConfigurationError` if `cron` is no such line.
    """
    if cron is None:
        # A tick is a process that starts. Those of fifty runs in one second are more than a server answers in time.
        second = int(hashlib.sha256(run.encode()).hexdigest(), 16) % int(INTERVAL.total_seconds())
        anchor = ORIGIN + timedelta(seconds=second)
        return IntervalSchedule(interval=INTERVAL, anchor_date=anchor, timezone=TIMEZONE)
    # Prefect takes a sixth field, of seconds: more flow runs than can begin.
    if len(cron.split()) <= MOST_FIELDS:
        with suppress(ValidationError):
            return CronSchedule(cron=cron, timezone=TIMEZONE)
    raise ConfigurationError(
        f"--schedule {cron!r} is not a schedule as cron has it. It takes five fields: minute, hour, day of "
        'the month, month and day of the week, for instance "*/5 * * * *" for every five minutes, in UTC.'
    )


def describe_schedule(schedule: SCHEDULE_TYPES) -> str:
    """In words; also of one that a person has put in the place of ours."""
    if isinstance(schedule, CronSchedule):
        return f'"{schedule.cron}" in {schedule.timezone or TIMEZONE}'
    if isinstance(schedule, IntervalSchedule) and schedule.interval == INTERVAL:
        second = (schedule.anchor_date.timestamp() - ORIGIN.timestamp()) % INTERVAL.total_seconds()
        first = ORIGIN + timedelta(seconds=second)
        return f"every 5 minutes: {first:%H:%M:%S}, {first + INTERVAL:%H:%M:%S} and so on in {TIMEZONE}"
    return "another kind of schedule"
