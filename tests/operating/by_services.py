"""Prefect's server, its database and the store are away, or refuse."""

import time
from collections.abc import Callable
from functools import partial

from tasks.prefect_bridge.alerts import RUN_ENDED
from tests.operating.by_people import COMPLETED, DONE, PREEMPTED
from tests.operating.rows import Operated, Row, Trial, require_told
from tests.operating.runs import Run, wait_for_all

SERVER_SECONDS = 150.0
DATABASE_SECONDS = 120.0
STORE_SECONDS = 120.0
SHORT_SECONDS = 40.0
BEFORE_SECONDS = 0.3
REFUSED_SECONDS = 90.0
SERVER_AWAY = ["[critical] server-away", "[over] server-away"]
STORE_AWAY = ["[critical] store-away", "[over] store-away"]
STORE_REFUSES = ["[critical] store-refuses", "[over] store-refuses"]
STATES_AFTER = 120.0  # after the service is back


def server_away(operated: Operated) -> list[Row]:
    """Long enough that one run is complete meanwhile."""
    return _without(
        operated, "server", SERVER_SECONDS, operated.place.services.kill_server,
        operated.place.services.start_server, SERVER_AWAY, f"kill -9 of the server, {SERVER_SECONDS:.0f} s",
    )  # fmt: skip


def database_away(operated: Operated) -> list[Row]:
    return _without(
        operated, "database", DATABASE_SECONDS, operated.place.services.stop_database,
        operated.place.services.start_database, SERVER_AWAY, f"the database is away, {DATABASE_SECONDS:.0f} s",
    )  # fmt: skip


def _without(
    operated: Operated,
    name: str,
    seconds: float,
    go: Callable[[], object],
    come: Callable[[], object],
    pages: list[str],
    what: str,
) -> list[Row]:
    runs = [operated.new_run(f"no-{name}-{number}") for number in range(2)]
    for run in runs:
        run.begin()
    wait_for_all(runs)
    trials = [Trial(operated, run, what, "trains on; no run is called crashed, and none begins twice") for run in runs]
    since = len(operated.place.told)
    for trial in trials:
        trial.strike(lambda: None)
    go()
    time.sleep(seconds)  # that time is what is tried
    come()
    rows = []
    for run, trial in zip(runs, trials, strict=True):
        trial.require_states(DONE, DONE, within=seconds + 600.0)
        crashed = [one for one in run.states(run.all_flow_runs()) if one == "Crashed"]
        trial.row.require(not crashed, f"{len(crashed)} flow runs are shown as crashed")
        rows.append(trial.end([COMPLETED]))
    require_told(operated, rows[0], since, pages)
    return rows


def store_away(operated: Operated) -> list[Row]:
    """In training; where a flow run was just asked to end; and where one begins."""
    place = operated.place
    trains, ends = operated.new_run("no-store-training"), operated.new_run("no-store-ending")
    for run in (trains, ends):
        run.begin()
    wait_for_all([trains, ends])
    begins = operated.new_run("no-store-beginning")
    begins.deploy()
    since = len(place.told)
    what = f"the store is away, {STORE_SECONDS:.0f} s"
    training = Trial(operated, trains, f"{what}, in training", "waits, and loses nothing")
    ending = Trial(operated, ends, f"{what}, from `holdfast stop` on", "the save waits, and nothing is lost")
    beginning = Trial(operated, begins, f"{what}, where a flow run begins", "Failed or waits; the next tick goes on")
    training.strike(lambda: None)
    ending.strike(lambda: place.type("stop", ends.address))
    time.sleep(BEFORE_SECONDS)  # the request is in the store, and perhaps found, when that goes away
    place.link.shut()
    begun = begins.submit()
    time.sleep(STORE_SECONDS)  # that time is what is tried
    place.link.open()
    ending.require_states({"Cancelled"}, {"Cancelled"}, within=STORE_SECONDS + STATES_AFTER)
    ends.submit()
    begins.wait(partial(begins.are_final, [begun]), "the flow run that met the outage ends")
    beginning.row.seen.append(begins.states([begun])[0])
    if not begins.is_complete():
        begins.submit()
    rows = [
        training.end([COMPLETED], may=["holdfast.save-failed"]),
        ending.end([PREEMPTED, COMPLETED], may=["holdfast.save-failed"]),
        beginning.end([COMPLETED]),
    ]
    require_told(operated, rows[0], since, STORE_AWAY)
    return rows


def store_away_in_evaluation(operated: Operated) -> Row:
    place = operated.place
    run = operated.training("no-store-evaluating")
    trial = Trial(
        operated, run, f"the store is away, {SHORT_SECONDS:.0f} s, in the evaluation", "tried again, Completed"
    )
    run.wait(partial(_evaluates, run), "it evaluates")
    since = len(place.told)
    trial.strike(place.link.shut)
    time.sleep(SHORT_SECONDS)  # that time is what is tried
    place.link.open()
    trial.require_states(DONE, DONE, within=SHORT_SECONDS + STATES_AFTER)
    row = trial.end([COMPLETED])
    operated.claimed.update(place.told[since:])  # 40 s may or may not be two looks that found nothing
    return row


def key_refused(operated: Operated) -> Row:
    """The store's user is suspended, and let in again."""
    place = operated.place
    run = operated.training("refused")
    expected = "told what and where; trains on, and loses nothing"
    trial = Trial(operated, run, f"credentials are refused, {REFUSED_SECONDS:.0f} s", expected)
    since = len(place.told)
    trial.strike(place.ceph.refuse)
    time.sleep(REFUSED_SECONDS)  # that time is what is tried
    place.ceph.accept()
    row = trial.end([COMPLETED], may=["holdfast.save-failed", RUN_ENDED])  # of a tick that met the refusal
    require_told(operated, row, since, STORE_REFUSES)
    return row


def _evaluates(run: Run) -> bool:
    lease = run.state.lease
    return lease is not None and lease.work == "evaluate"
