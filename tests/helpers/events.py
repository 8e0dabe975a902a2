"""The alerts that are handed to Prefect, as the events that they make."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prefect.events.schemas.events import Event
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.types._datetime import now

from tasks.prefect_bridge import alerts

# A server seems to be configured; nobody asks it anything.
NOBODY = "http://127.0.0.1:9/api"


@contextmanager
def taking_events() -> Iterator[Callable[[], list[Event]]]:
    """While the block lasts. What is yielded returns those so far, the oldest first.

    Not real: what Prefect does with them. `integration/test_alerts.py` has a real server.
    """
    taken: list[Event] = []

    def take(**fields: Any) -> None:
        taken.append(Event(occurred=now("UTC"), **fields))

    with pytest.MonkeyPatch.context() as patch, temporary_settings({PREFECT_API_URL: NOBODY}):
        patch.setattr(alerts, "emit_event", take)
        yield lambda: list(taken)
