"""What `holdfast reconcile` does beside a real server and worker: a next flow run after a kill, none after a pause."""

import time
from collections.abc import Iterable, Iterator
from functools import partial

import pytest

from tasks.reconciling.consequences import DEAD
from tests.helpers.commands import call_here
from tests.helpers.fault_plans import FaultPlan, StepFault
from tests.helpers.operators import (
    ENDED,
    NEVER,
    PREFECT,
    Operator,
    kill_all,
    operating_reconciled,
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

# Longer than nothing is heard of a process before it is called dead, and than the looks around it.
SILENT_SECONDS = 120
# Ten runs suspended so one after the other are more than two looks.
APART_SECONDS = 3.0
SAVE_EVERY = 50
RUNS = tuple(f"suspended-{number}" for number in range(10))


@pytest.fixture
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """With a worker and a reconciler.

    On PostgreSQL: with SQLite the server does not answer in time where ten flow runs begin at once. Not real: each step
    takes a tenth of a second longer, so that ten ranks leave two processors to the server.
    """
    folder, home = tmp_path_factory.mktemp("operator"), tmp_path_factory.mktemp("prefect")
    slow = FaultPlan().having(StepFault("slow")).environment(folder / "slow", [])
    with (
        made_postgres() as postgres,
        postgres.serving(),
        running_prefect_server(home, database=postgres.url) as server,
        operating_reconciled(folder, server) as operator,
        working(operator, PREFECT, {**server, **slow}, folder, most_flow_runs=None),
    ):
        yield operator


def test_after_a_flow_run_was_killed_the_next_one_begins_without_a_person_and_without_the_schedule(
    operator: Operator,
) -> None:
    killed = operator.submit(name := deploy(operator, "tiny"))
    operator.wait(lambda: operator.segment_has_saved(1))
    training, killed_at = operator.find_training(killed), time.monotonic()
    kill_all(processes_of(killed))
    operator.wait(lambda: {operator.states(one)[-1]["type"] for one in (killed, training)} == {"CRASHED"})
    print(f"crashed after {time.monotonic() - killed_at:.0f} s")  # shown with -s
    # The worker sees the kill of the process that it has started; of the flow run in that one it knows nothing.
    assert operator.states(training)[-1]["message"] == DEAD
    operator.wait(lambda: operator.segment_has_saved(2))
    (following,) = [run for run in operator.flow_runs(name) if run != killed]
    call_here(["stop", operator.folder / "store/runs/tiny"])
    operator.wait(lambda: operator.states(following)[-1]["type"] in ENDED)
    assert operator.states(following)[-1]["type"] == "CANCELLED"
    (lost, stopped) = operator.state().segments
    assert (lost.outcome, stopped.outcome) == ("lost", "preempted")


def test_a_flow_run_that_a_person_suspended_is_left_as_it_is(operator: Operator) -> None:
    suspended = operator.submit(name := deploy(operator, "tiny"))
    operator.wait(lambda: operator.segment_has_saved(1))
    operator.suspend(suspended)
    operator.wait(lambda: not processes_of(suspended))
    time.sleep(SILENT_SECONDS)  # of nothing that is not done there is a sign
    assert operator.states(suspended)[-1]["name"] == "Suspended"
    assert operator.flow_runs(name) == [suspended]
    assert operator.state().lease is None


@pytest.mark.timeout(1800)
def test_whenever_between_two_looks_a_person_suspends_ten_flow_runs_each_stays_so_and_each_goes_on_when_resumed(
    operator: Operator,
) -> None:
    names = {run: deploy(operator, run) for run in RUNS}
    flow_runs = {run: operator.submit(name) for run, name in names.items()}
    wait_for_segment(1, operator, RUNS)
    for flow_run in flow_runs.values():
        operator.suspend(flow_run)
        time.sleep(APART_SECONDS)  # the moment between two looks is what is tried
    operator.wait(lambda: not any(processes_of(flow_run) for flow_run in flow_runs.values()))
    time.sleep(SILENT_SECONDS)  # of nothing that is not done there is a sign
    assert {run: operator.states(flow_run)[-1]["name"] for run, flow_run in flow_runs.items()} == dict.fromkeys(
        RUNS, "Suspended"
    )
    assert {run: operator.flow_runs(name) for run, name in names.items()} == {run: [flow_runs[run]] for run in RUNS}
    for run, flow_run in flow_runs.items():
        (segment,) = operator.state(run).segments
        assert (segment.outcome, segment.steps_lost) == ("preempted", 0)
        operator.resume(flow_run)
    wait_for_segment(2, operator, RUNS)
    for run in RUNS:
        call_here(["stop", operator.folder / f"store/runs/{run}"])
    operator.wait(lambda: all(operator.states(flow_run)[-1]["type"] in ENDED for flow_run in flow_runs.values()))
    assert {run: operator.flow_runs(name) for run, name in names.items()} == {run: [flow_runs[run]] for run in RUNS}


def deploy(operator: Operator, run: str) -> str:
    """Have the server go on with a run, by no schedule; the name of its deployment."""
    settings = ["--set", f"run={run}", "--set", f"checkpoint.every_steps={SAVE_EVERY}"]
    made = operator.type("deploy", "tiny.toml", *settings, "--schedule", NEVER)
    assert made.returncode == 0, made.stderr
    return f"scheduled/{run}"


def wait_for_segment(number: int, operator: Operator, runs: Iterable[str]) -> None:
    """One after the other: ten processes load their libraries at once."""
    for run in runs:
        operator.wait(partial(operator.segment_has_saved, number, run))
