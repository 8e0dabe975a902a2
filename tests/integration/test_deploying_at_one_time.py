"""Two that run `holdfast deploy` at one time on a real server: of each automation there is one, in whatever order.

Both have seen that none is there. From then on one of them does its next step, then one of them again, in each order
that there is. A step makes the automations, looks again, or takes away.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from itertools import combinations
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest
from prefect.blocks.notifications import SlackWebhook
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from flows.configured_prefect import asking
from flows.deploying import automations, kept_automations
from tests.helpers.operators import at_the_server
from tests.helpers.prefect_server import ANSWER_SECONDS, RETRIES_WHILE_BUSY

STEPS = 3
# Of two that do the same it does not matter which is called the first.
ORDERS = [
    ["a", *("a" if step in of_first else "b" for step in range(2 * STEPS - 1))]
    for of_first in combinations(range(2 * STEPS - 1), STEPS - 1)
]
# Also the other way round: the server may come to have first the one that it was asked for last.
COMES_TO_HAVE_FIRST = ["what-it-was-asked-for-first", "what-it-was-asked-for-last"]


class KilledError(Exception):
    """The process of one who deploys is no more."""


class AtOneTime:
    """Those who deploy at one time, each in a thread of its name."""

    def __init__(self, order: Sequence[str], is_reversed: bool, killed: str | None = None) -> None:
        self.left = deque(order)
        self._is_reversed, self._killed = is_reversed, killed
        self._all_have_looked = threading.Barrier(len({*order}))
        self._turn = threading.Condition()
        self._looked: set[str] = set()
        self._find = kept_automations._find

    def deploy(self, url: str) -> None:
        """All of them, to their ends."""
        names = sorted({*self.left})
        with temporary_settings({PREFECT_API_URL: url}), patch.object(kept_automations, "_find", self._look):
            calls: list[tuple[Callable[..., None], str]] = [(copy_context().run, name) for name in names]
            threads = [threading.Thread(target=run, args=(self._put,), name=name) for run, name in calls]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _put(self) -> None:
        try:
            with asking() as client:
                kept_automations.put_automations(client, None)
        except KilledError:
            assert threading.current_thread().name == self._killed
        finally:
            self._end_step()

    def _look(self, client: Any, names: Sequence[str]) -> dict[str, list[Any]]:
        name = threading.current_thread().name
        if name not in self._looked:
            self._looked.add(name)
            found = self._find(client, names)
            self._all_have_looked.wait(ANSWER_SECONDS)
            self._begin_step(name)
            return found
        if name == self._killed:
            raise KilledError
        self._end_step()
        self._begin_step(name)
        found = self._find(client, names)
        self._end_step()
        self._begin_step(name)
        return {name: those[::-1] for name, those in found.items()} if self._is_reversed else found

    def _begin_step(self, name: str) -> None:
        with self._turn:
            assert self._turn.wait_for(lambda: self.left[0] == name, ANSWER_SECONDS)

    def _end_step(self) -> None:
        with self._turn:
            self.left.popleft()
            self._turn.notify_all()


@pytest.fixture
def tag(monkeypatch: pytest.MonkeyPatch, prefect_server: dict[str, str], tmp_path: Any) -> Iterator[str]:
    """What the automations' names begin with, and a block has: other tests deploy to the same server."""
    tag = f"at-one-time-{uuid4().hex[:8]}"
    settings = {PREFECT_API_URL: prefect_server["PREFECT_API_URL"], PREFECT_CLIENT_MAX_RETRIES: RETRIES_WHILE_BUSY}
    with temporary_settings(settings):
        SlackWebhook(url="https://hooks.slack.com/services/T/B/K").save(tag)
    for module in (automations, kept_automations):
        monkeypatch.setattr(module, "TAG", tag)
    yield tag
    with at_the_server(tmp_path, prefect_server) as operator:
        for automation in operator.automations(tag).values():
            operator.request("DELETE", f"/automations/{automation['id']}")


@pytest.mark.parametrize("first", COMES_TO_HAVE_FIRST)
@pytest.mark.parametrize("order", ORDERS, ids="".join)
def test_two_that_deploy_at_one_time_leave_one_of_each(
    prefect_server: dict[str, str], tmp_path: Any, tag: str, order: list[str], first: str
) -> None:
    those = AtOneTime(order, is_reversed=first == COMES_TO_HAVE_FIRST[1])
    those.deploy(prefect_server["PREFECT_API_URL"])
    assert not those.left
    with at_the_server(tmp_path, prefect_server) as operator:  # which fails if there are two of one name
        assert {*operator.automations(tag)} == {f"{tag}-alerts", f"{tag}-reconciler"}


@pytest.mark.parametrize("first", COMES_TO_HAVE_FIRST)
def test_of_one_who_is_killed_before_looking_again_no_second_one_is_left(
    prefect_server: dict[str, str], tmp_path: Any, tag: str, first: str
) -> None:
    those = AtOneTime(["killed", *STEPS * "a"], is_reversed=first == COMES_TO_HAVE_FIRST[1], killed="killed")
    those.deploy(prefect_server["PREFECT_API_URL"])
    assert not those.left
    with at_the_server(tmp_path, prefect_server) as operator:
        assert {*operator.automations(tag)} == {f"{tag}-alerts", f"{tag}-reconciler"}
