"""What follows from looks at a real store: Prefect is asked for it, and people are told, each thing once.

The clock is made up, and Prefect notes what it is asked for: `integration/test_reconcile.py` has a real server.
"""

from collections.abc import Callable

import pytest

from storage.errors import StoreError, StoreRefusedError, StoreUnavailableError
from storage.objects.local_store import LocalStore
from storage.runs.manifest import Manifest
from storage.runs.transitions import reconfigure
from storage.segment_notes import FlowRunsRecord, StopRecord, write_flow_runs, write_stop
from tasks.reconciling.open_pages import PAGES
from tests.helpers.counted_requests import counting
from tests.helpers.reconciled import (
    LOOK_SECONDS,
    LOOKS_UNTIL_DEAD,
    AwayStore,
    Clock,
    NotedPrefect,
    Person,
    Watcher,
    hold,
    hold_again,
    put_run,
)

RESTS_LOOKS = 45  # longer than what is tried again rests
SUBJECTS_OF_TWO = ("[critical] run-needs-person: run", "[warning] run-dead: other")


def open_pages(store: LocalStore) -> list[str]:
    return [key.removeprefix(PAGES) for key in store.list_keys(PAGES)]


def test_a_holder_that_beats_is_left_alone_however_wrong_its_clock_is(
    store: LocalStore, make: Callable[[], Watcher], person: Person, prefect: NotedPrefect
) -> None:
    holder = hold(store, "run")
    make().look(RESTS_LOOKS, beats=holder)
    assert (person.subjects, prefect.gone_on) == ([], [])


def test_a_dead_holders_flow_runs_are_crashed_the_next_begins_and_people_are_told_once_and_when_it_is_over(
    store: LocalStore, make: Callable[[], Watcher], person: Person, prefect: NotedPrefect
) -> None:
    holder, watcher = hold(store, "run"), make()
    write_flow_runs(store, "run", holder.fence, FlowRunsRecord(ids=["inner", "outer"]))
    watcher.look(3, beats=holder)
    watcher.look(LOOKS_UNTIL_DEAD - 2)
    assert (person.subjects, prefect.gone_on) == ([], [])
    watcher.look(RESTS_LOOKS // 3)
    address = f"{store.address}/runs/run"
    assert prefect.gone_on == [(address, ["inner", "outer"], False)]
    assert person.subjects == ["[warning] run-dead: run"]
    assert open_pages(store) == [f"run-dead/run/{holder.fence:012d}.json"]
    (body,) = person.bodies
    for part in (address, "step 7 of 100", "lucky-otter", "deployments/runbook.md", "What to do: ", "Host: "):
        assert part in body

    watcher.look(2, beats=hold_again(store, "run"))
    assert person.subjects[1:] == ["[over] run-dead: run"]
    assert open_pages(store) == []


def test_one_that_nobody_goes_on_with_is_told_of_once_more(
    store: LocalStore, make: Callable[[], Watcher], person: Person, prefect: NotedPrefect
) -> None:
    hold(store, "run")
    prefect.taken_up = True
    watcher = make()
    watcher.look(RESTS_LOOKS)
    assert person.subjects == ["[warning] run-dead: run"]
    prefect.taken_up = False
    watcher.look(2)
    assert person.subjects == ["[warning] run-dead: run", "[critical] run-stuck: run"]


def test_one_that_another_flow_run_takes_up_is_looked_after_until_that_one_has(
    store: LocalStore, make: Callable[[], Watcher], person: Person, prefect: NotedPrefect
) -> None:
    """That one may have died with the machine."""
    hold(store, "run")
    prefect.others_begin = True
    watcher = make()
    watcher.look(LOOKS_UNTIL_DEAD + 3)
    assert (len(prefect.gone_on), prefect.num_asked_again) == (1, 3)
    prefect.is_away = True
    watcher.look(2)
    prefect.is_away = prefect.others_begin = False
    watcher.look(3)
    assert (len(prefect.gone_on), prefect.num_asked_again) == (1, 4)
    assert person.subjects == ["[warning] run-dead: run"]


def test_that_a_person_has_asked_for_the_end_is_handed_on(
    store: LocalStore, make: Callable[[], Watcher], prefect: NotedPrefect
) -> None:
    holder = hold(store, "run")
    write_stop(store, "run", holder.fence, StopRecord(asked_by="root on vm", asked_at=1.0))
    make().look(LOOKS_UNTIL_DEAD)
    assert [is_to_stop for _, _, is_to_stop in prefect.gone_on] == [True]


def test_while_the_store_is_away_nothing_is_set_and_one_page_says_so_and_another_that_it_is_back(
    store: LocalStore, person: Person, prefect: NotedPrefect
) -> None:
    hold(store, "run")
    failing = AwayStore(store.root)
    watcher = Watcher(failing, person, prefect, Clock())
    watcher.look(LOOKS_UNTIL_DEAD - 1)
    failing.trouble = StoreUnavailableError("Cannot reach it.")
    watcher.look(RESTS_LOOKS)
    assert person.subjects == [f"[critical] store-away: {store.address}"]
    failing.trouble = None
    watcher.look(LOOKS_UNTIL_DEAD - 1)
    assert person.subjects[1:] == [f"[over] store-away: {store.address}"]
    assert prefect.gone_on == []  # counted anew
    watcher.look()
    assert len(prefect.gone_on) == 1


@pytest.mark.parametrize("refusal", [StoreRefusedError, StoreError])
def test_a_store_that_refuses_is_another_page(
    store: LocalStore, person: Person, prefect: NotedPrefect, refusal: type[StoreError]
) -> None:
    failing = AwayStore(store.root)
    hold(store, "run")
    watcher = Watcher(failing, person, prefect, Clock())
    watcher.look()
    failing.trouble = refusal("403 InvalidAccessKeyId: the server does not accept the credentials.")
    watcher.look(5)
    assert person.subjects == [f"[critical] store-refuses: {store.address}"]
    assert "InvalidAccessKeyId" in person.bodies[0]


def test_what_a_server_that_is_away_did_not_do_is_done_when_it_is_back(
    store: LocalStore, make: Callable[[], Watcher], person: Person, prefect: NotedPrefect
) -> None:
    hold(store, "run")
    put_run(store, "done")
    prefect.is_away = True
    watcher = make()
    watcher.look(2 * LOOKS_UNTIL_DEAD)
    assert person.subjects == ["[warning] run-dead: run"]  # which needs no server
    prefect.is_away = False
    watcher.look(2)
    assert len(prefect.gone_on) == 1
    assert prefect.paused == [f"{store.address}/runs/done"]


def test_the_schedule_of_a_complete_run_is_paused_once_also_by_the_next_process(
    store: LocalStore, make: Callable[[], Watcher], person: Person, prefect: NotedPrefect
) -> None:
    put_run(store, "done")
    put_run(store, "not-done", "budget")
    first = make()
    first.look(20)
    first.watch.leave()
    make().look(20)
    assert prefect.paused == [f"{store.address}/runs/done"]
    assert person.subjects == []


def test_a_page_is_sent_once_also_by_the_next_process_which_says_that_it_is_over(
    store: LocalStore, make: Callable[[], Watcher], person: Person
) -> None:
    holder = hold(store, "run")
    first = make()
    first.look(LOOKS_UNTIL_DEAD + 1)
    first.watch.leave()
    second = make()
    second.look(2 * LOOKS_UNTIL_DEAD)
    assert person.subjects == ["[warning] run-dead: run"]
    second.look(2, beats=holder)
    assert person.subjects == ["[warning] run-dead: run", "[over] run-dead: run"]


def test_who_dies_between_sending_a_page_and_noting_it_sends_it_twice_at_most(
    store: LocalStore, make: Callable[[], Watcher], person: Person
) -> None:
    hold(store, "run")
    first = make()
    first.look(LOOKS_UNTIL_DEAD)  # sent after the look, and noted at the next one, which it does not live to see
    assert person.subjects == ["[warning] run-dead: run"] and open_pages(store) == []
    second = make()
    second.look(3 * LOOKS_UNTIL_DEAD)  # the first minute for the other's beat
    third = make()
    third.look(3 * LOOKS_UNTIL_DEAD)
    assert person.subjects == ["[warning] run-dead: run"] * 2


def test_a_page_that_does_not_arrive_is_sent_again_until_it_does(
    store: LocalStore, make: Callable[[], Watcher], person: Person
) -> None:
    hold(store, "run")
    person.trouble = "it was answered with the status 503."
    watcher = make()
    watcher.look(2 * LOOKS_UNTIL_DEAD)
    assert open_pages(store) == []
    person.trouble = None
    watcher.look(2)
    assert person.subjects == ["[warning] run-dead: run"] and len(open_pages(store)) == 1


def test_a_run_needs_a_person_after_it_has_rested_and_until_it_has_got_on(
    store: LocalStore, make: Callable[[], Watcher], person: Person
) -> None:
    put_run(store, "run", "failed")
    watcher = make()
    watcher.look(RESTS_LOOKS - 10)
    assert person.subjects == []
    watcher.look(10)
    assert person.subjects == ["[critical] run-needs-person: run"]
    assert "out of memory" in person.bodies[0] and "step 40 of 100" in person.bodies[0]
    watcher.look(5, beats=hold_again(store, "run"))  # it may fail again
    assert len(person.subjects) == 1


def test_a_page_says_whose_the_run_is_by_its_newest_configuration(
    store: LocalStore, make: Callable[[], Watcher], person: Person
) -> None:
    manifest = put_run(store, "run", "failed")
    for owner in ("first team", "search team"):
        manifest.commit("configuration changed", reconfigure({"owner": owner}, 100))
    make().look(RESTS_LOOKS)
    hold(store, "other")  # whose configuration has none
    make().look(RESTS_LOOKS)
    of_run, of_other = (person.bodies[person.subjects.index(subject)] for subject in SUBJECTS_OF_TWO)
    assert "\nOwner: search team\n" in of_run and "Owner" not in of_other


def test_of_two_one_acts_and_the_other_takes_over_when_it_ends(
    store: LocalStore, make: Callable[[], Watcher], person: Person, prefect: NotedPrefect
) -> None:
    hold(store, "run")
    first, second = make(), make()
    for _ in range(2 * LOOKS_UNTIL_DEAD):
        first.look()
        second.look()
    assert (len(person.subjects), len(prefect.gone_on)) == (1, 1)
    second.look(3 * LOOKS_UNTIL_DEAD)  # the first one was killed
    assert (len(person.subjects), len(prefect.gone_on)) == (1, 2)  # the second time the server finds it done
    first.look()  # it was only stopped, and steps down
    assert (len(person.subjects), len(prefect.gone_on)) == (1, 2)


def test_a_run_that_cannot_be_read_is_told_of_and_the_others_go_on(
    store: LocalStore,
    make: Callable[[], Watcher],
    person: Person,
    prefect: NotedPrefect,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("storage.runs.manifest.LOOK_AGAIN_SECONDS", ())
    hold(store, "run")
    manifest = put_run(store, "damaged", "budget")
    store.write(manifest.list_addresses()[-1].removeprefix(f"{store.address}/"), b"{}")
    make().look(LOOKS_UNTIL_DEAD + 1)
    assert sorted(person.subjects) == ["[critical] run-needs-person: damaged", "[warning] run-dead: run"]
    assert "holdfast recover" in "".join(person.bodies)
    assert len(prefect.gone_on) == 1


def test_an_error_of_the_program_ends_neither_the_look_nor_the_watch(
    store: LocalStore, make: Callable[[], Watcher], prefect: NotedPrefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(store, "run")
    put_run(store, "strange", "failed")
    monkeypatch.setattr("tasks.reconciling.verdicts.describe_status", lambda store, head: 1 / 0)
    make().look(LOOKS_UNTIL_DEAD)
    assert len(prefect.gone_on) == 1


@pytest.mark.parametrize("has_deployments", [True, False])
def test_a_look_asks_little_of_a_run_in_training_and_nothing_of_a_complete_one(
    store: LocalStore, make: Callable[[], Watcher], prefect: NotedPrefect, has_deployments: bool
) -> None:
    prefect.has_deployments = has_deployments
    holder, watcher = hold(store, "run"), make()
    for number in range(20):
        put_run(store, f"done-{number}")
    watcher.look(2, beats=holder)
    with counting(store) as counted:
        watcher.look(1, beats=holder)
    # Terms once, the run's generations once, its heartbeat.
    assert counted.requests == {"list": 2, "read": 1}, counted.requests
    with counting(store) as counted:
        watcher.look(4, beats=holder)  # once in a minute schedules are looked at, too
    assert counted.requests["read"] == 4, counted.requests


def test_a_complete_run_that_is_deployed_later_rests_then(
    store: LocalStore, make: Callable[[], Watcher], prefect: NotedPrefect
) -> None:
    put_run(store, "done")
    prefect.has_deployments = False
    watcher = make()
    watcher.look(10)
    prefect.has_deployments = True
    watcher.look(10)
    assert prefect.paused == [f"{store.address}/runs/done"]


def test_a_run_that_is_deleted_is_forgotten(
    store: LocalStore, make: Callable[[], Watcher], prefect: NotedPrefect
) -> None:
    hold(store, "run")
    watcher = make()
    watcher.look(2)
    for key in list(store.list_keys("runs/run/")):
        store.delete(key)
    watcher.look(2 * LOOKS_UNTIL_DEAD)
    assert prefect.gone_on == [] and not Manifest(store, "run").exists()
    assert watcher.clock.now == LOOK_SECONDS * (2 + 2 * LOOKS_UNTIL_DEAD)
