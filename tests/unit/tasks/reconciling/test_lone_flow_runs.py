"""Which flow runs without a run count as dead, at looks of a store's watch, and when they count anew.

The clock is made up, and Prefect notes what it is asked for: `integration/test_reconcile.py` has a real server.
"""

from pathlib import Path
from uuid import UUID, uuid4

import pytest

from storage.errors import StoreUnavailableError
from storage.objects.local_store import LocalStore
from tasks.reconciling.lone_flow_runs import LoneFlowRuns
from tasks.reconciling.store_watch import SECONDS_BETWEEN
from tests.helpers.reconciled import (
    LOOKS_A_MINUTE,
    LOOKS_UNTIL_DEAD,
    LOOKS_UNTIL_LONE_DEAD,
    AwayStore,
    Clock,
    NotedPrefect,
    Person,
    Watcher,
    hold,
    put_run,
)


@pytest.fixture
def store(tmp_path: Path) -> AwayStore:
    return AwayStore(tmp_path / "store")


@pytest.fixture
def watcher(store: AwayStore, prefect: NotedPrefect) -> Watcher:
    return Watcher(store, Person(), prefect, Clock())


def test_one_whose_sign_stands_still_for_minutes_is_called_dead_once_and_one_that_is_heard_is_not(
    watcher: Watcher, prefect: NotedPrefect, caplog: pytest.LogCaptureFixture
) -> None:
    dead, lives = uuid4(), uuid4()
    for look in range(1, LOOKS_UNTIL_LONE_DEAD):
        prefect.signs = {dead: "1 then", lives: f"{look} later"}
        watcher.look()
    assert prefect.called_dead == [] and "lone-otter" not in caplog.text
    watcher.look()  # there is no run in the store yet
    assert prefect.called_dead == [dead]
    assert caplog.text.count("the flow run lone-otter held no run and is dead") == 1
    prefect.signs[lives] = "one more"
    watcher.look(LOOKS_UNTIL_LONE_DEAD - LOOKS_A_MINUTE)
    assert prefect.called_dead == [dead]


def test_nothing_is_said_of_one_that_has_ended_meanwhile(
    watcher: Watcher, prefect: NotedPrefect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[UUID] = []
    monkeypatch.setattr(prefect, "call_dead", asked.append)
    prefect.signs = {uuid4(): "1 then"}
    watcher.look(LOOKS_UNTIL_LONE_DEAD)
    assert asked == list(prefect.signs) and "is dead" not in caplog.text


def test_after_a_look_that_the_server_did_not_answer_all_count_anew(watcher: Watcher, prefect: NotedPrefect) -> None:
    prefect.signs = {uuid4(): "1 then"}
    watcher.look(LOOKS_UNTIL_LONE_DEAD - 1)
    prefect.is_away = True
    watcher.look()
    prefect.is_away = False
    watcher.look(LOOKS_UNTIL_LONE_DEAD - 1)
    assert prefect.called_dead == []
    watcher.look()
    assert len(prefect.called_dead) == 1


def test_after_a_look_that_the_store_did_not_answer_all_count_anew(
    watcher: Watcher, store: AwayStore, prefect: NotedPrefect
) -> None:
    prefect.signs = {uuid4(): "1 then"}
    watcher.look(LOOKS_UNTIL_LONE_DEAD - 1)
    store.trouble = StoreUnavailableError("no answer")
    watcher.look()
    store.trouble = None
    watcher.look(LOOKS_UNTIL_LONE_DEAD - 1)
    assert prefect.called_dead == []


def test_one_that_is_not_seen_at_a_look_counts_anew(watcher: Watcher, prefect: NotedPrefect) -> None:
    prefect.signs = signs = {uuid4(): "1 then"}
    watcher.look(LOOKS_UNTIL_LONE_DEAD - LOOKS_A_MINUTE)
    prefect.signs = {}  # its run is held, for instance
    watcher.look(LOOKS_A_MINUTE)
    prefect.signs = signs
    watcher.look(LOOKS_UNTIL_LONE_DEAD - 1)
    assert prefect.called_dead == []


def test_left_out_are_runs_whose_holder_may_live_and_those_that_cannot_be_read(
    watcher: Watcher, store: AwayStore, prefect: NotedPrefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.runs.manifest.LOOK_AGAIN_SECONDS", ())
    holder = hold(store, "lives")
    hold(store, "dies")
    put_run(store, "waits", "budget")
    damaged = put_run(store, "damaged", "budget")
    store.write(damaged.list_addresses()[-1].removeprefix(f"{store.address}/"), b"{}")
    runs = f"{store.address}/runs"
    watcher.look(beats=holder)
    assert prefect.held == {f"{runs}/lives", f"{runs}/dies", f"{runs}/damaged"}
    watcher.look(2 * LOOKS_UNTIL_DEAD, beats=holder)
    assert prefect.held == {f"{runs}/lives", f"{runs}/damaged"}


def test_a_process_that_acts_no_more_calls_none_dead_and_counts_anew_when_it_acts_again(
    store: AwayStore, watcher: Watcher, prefect: NotedPrefect
) -> None:
    prefect.signs = {uuid4(): "1 then"}
    watcher.look(LOOKS_UNTIL_LONE_DEAD - 1)
    other = Watcher(LocalStore(store.root), Person(), prefect, Clock())
    other.look(2 * LOOKS_UNTIL_DEAD)  # the first one stands still
    watcher.look()
    other.watch.leave()
    watcher.look(LOOKS_UNTIL_LONE_DEAD - 1)
    assert prefect.called_dead == []
    watcher.look(LOOKS_A_MINUTE)
    assert len(prefect.called_dead) == 1


def test_before_one_is_called_dead_the_store_is_asked_who_acts(prefect: NotedPrefect) -> None:
    prefect.signs, clock = {uuid4(): "1 then"}, Clock()
    lone = LoneFlowRuns("store", prefect, clock)
    for _ in range(7):
        lone.look([], lambda: False)
        clock.now += SECONDS_BETWEEN
    assert prefect.called_dead == []
    lone.look([], lambda: True)
    assert len(prefect.called_dead) == 1
