"""Fixtures for tests of tasks."""

from collections.abc import Callable, Iterator

import pytest
from prefect.events.schemas.events import Event

from tests.helpers.events import taking_events


@pytest.fixture
def told() -> Iterator[Callable[[], list[Event]]]:
    """The events that whoever is on call has been sent so far."""
    with taking_events() as told:
        yield told
