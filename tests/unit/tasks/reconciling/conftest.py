"""A store, who is told, a Prefect that notes what it is asked for, and reconcilers that look when they are told to."""

from collections.abc import Callable
from pathlib import Path

import pytest

from storage.objects.local_store import LocalStore
from tests.helpers.reconciled import Clock, NotedPrefect, Person, Watcher


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def person() -> Person:
    return Person()


@pytest.fixture
def prefect() -> NotedPrefect:
    return NotedPrefect()


@pytest.fixture
def make(store: LocalStore, person: Person, prefect: NotedPrefect) -> Callable[[], Watcher]:
    """A reconciler's process: another one has the same store, people and server, and nothing in memory."""
    clock = Clock()
    return lambda: Watcher(store, person, prefect, clock)
