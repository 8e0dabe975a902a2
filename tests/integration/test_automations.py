"""What the automations of the README do on a real server: the next flow run after a crash, and none after a pause."""

import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from flows.deploying.automations import HEARTBEAT, HEARTBEAT_SECONDS
from tasks.corpora.generate import generate_corpus
from tests.helpers.commands import call_here
from tests.helpers.operators import (
    CONFIGURATION,
    ENDED,
    PREFECT,
    Operator,
    create_automations,
    deployed,
    kill_all,
    processes_of,
    working,
)
from tests.helpers.postgres_server import PACKAGE, find_programs, made_postgres
from tests.helpers.prefect_server import running_prefect_server

pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.skipif(
        find_programs() is None, reason=f"PostgreSQL is not installed; on Debian 12: apt-get install {PACKAGE}"
    ),
]

# Where the schedule finds its configuration: deployments/prefect.yaml.
SCHEDULED_CONFIGURATION = "deployments/configs/demo.toml"
# Longer than the automation hears nothing before it acts, and than the server takes to look.
SILENT_SECONDS = 120
# A pause at each of these moments after a heartbeat, each of another run.
PHASES = tuple(range(0, HEARTBEAT_SECONDS, 3))


@pytest.fixture
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """With a worker, the automations, and a run where the schedule looks for one.

    On PostgreSQL: with SQLite the server does not answer in time where ten flow runs begin at once.
    """
    folder = tmp_path_factory.mktemp("operator")
    configuration = folder / SCHEDULED_CONFIGURATION
    configuration.parent.mkdir(parents=True)
    configuration.write_text(CONFIGURATION)
    generate_corpus(configuration.parent / "corpus", "policy", 600)
    home = tmp_path_factory.mktemp("prefect")
    with (
        made_postgres() as postgres,
        postgres.serving(),
        running_prefect_server(home, with_automations=True, database=postgres.url) as server,
    ):
        create_automations(folder, server)
        with (
            deployed(folder, PREFECT, server) as operator,
            working(operator, PREFECT, server, folder, most_flow_runs=None),
        ):
            yield Operator(operator.api, configuration.parent, operator.worker_log)


def test_after_a_flow_run_was_killed_the_next_one_begins_without_a_person_and_without_the_schedule(
    operator: Operator,
) -> None:
    killed = operator.submit("scheduled/train")
    operator.wait(lambda: operator.segment_has_saved(1))
    kill_all(processes_of(killed))
    operator.wait(lambda: operator.states(killed)[-1]["type"] == "CRASHED")
    operator.wait(lambda: operator.segment_has_saved(2))
    (following,) = [run for run in operator.flow_runs("scheduled/train") if run != killed]
    call_here(["stop", operator.folder / "store/runs/tiny"])
    operator.wait(lambda: operator.states(following)[-1]["type"] in ENDED)
    assert operator.states(following)[-1]["type"] == "CANCELLED"
    (lost, stopped) = operator.state().segments
    assert (lost.outcome, stopped.outcome) == ("lost", "preempted")


def test_a_flow_run_that_a_person_suspended_is_left_as_it_is(operator: Operator) -> None:
    suspended = operator.submit("scheduled/train")
    operator.wait(lambda: operator.segment_has_saved(1))
    operator.suspend(suspended)
    operator.wait(lambda: not processes_of(suspended))
    time.sleep(SILENT_SECONDS)  # of nothing that is not done there is a sign
    assert operator.states(suspended)[-1]["name"] == "Suspended"
    assert operator.flow_runs("scheduled/train") == [suspended]
    assert operator.state().lease is None


@pytest.mark.timeout(1800)
def test_however_long_after_a_heartbeat_a_person_suspends_ten_flow_runs_each_stays_so_and_each_goes_on_when_resumed(
    operator: Operator,
) -> None:
    flow_runs = {
        f"paused-{phase}": operator.submit("scheduled/train", assignments=[f"run=paused-{phase}"]) for phase in PHASES
    }
    wait_for_segment(1, operator, flow_runs)
    earliest = datetime.now(UTC) + timedelta(seconds=2)
    due = [
        (find_moment(operator, flow_run, phase, earliest), flow_run)
        for phase, flow_run in zip(PHASES, flow_runs.values(), strict=True)
    ]
    for moment, flow_run in sorted(due):
        time.sleep(max(0.0, (moment - datetime.now(UTC)).total_seconds()))  # the phase is what is tried
        operator.suspend(flow_run)
    operator.wait(lambda: not any(processes_of(flow_run) for flow_run in flow_runs.values()))
    time.sleep(SILENT_SECONDS)  # of nothing that is not done there is a sign
    assert {run: operator.states(flow_run)[-1]["name"] for run, flow_run in flow_runs.items()} == dict.fromkeys(
        flow_runs, "Suspended"
    )
    assert sorted(operator.flow_runs("scheduled/train")) == sorted(flow_runs.values())
    for run, flow_run in flow_runs.items():
        (segment,) = operator.state(run).segments
        assert (segment.outcome, segment.steps_lost) == ("preempted", 0)
        operator.resume(flow_run)
    wait_for_segment(2, operator, flow_runs)
    for run in flow_runs:
        call_here(["stop", operator.folder / f"store/runs/{run}"])
    operator.wait(lambda: all(operator.states(flow_run)[-1]["type"] in ENDED for flow_run in flow_runs.values()))
    assert sorted(operator.flow_runs("scheduled/train")) == sorted(flow_runs.values())


def wait_for_segment(number: int, operator: Operator, runs: Iterable[str]) -> None:
    """One after the other: ten processes load their libraries at once."""
    for run in runs:
        operator.wait(partial(operator.segment_has_saved, number, run))


def find_moment(operator: Operator, flow_run: str, phase: int, earliest: datetime) -> datetime:
    """The next moment that is so many seconds after a heartbeat of the flow run."""
    beats = operator.events(HEARTBEAT, f"prefect.flow-run.{flow_run}")
    last = max(datetime.fromisoformat(beat["occurred"]) for beat in beats)
    intervals = max(0.0, (earliest - last - timedelta(seconds=phase)).total_seconds()) // HEARTBEAT_SECONDS + 1
    return last + timedelta(seconds=phase + intervals * HEARTBEAT_SECONDS)
