"""Prefect's server and its database go away while a worker's flow run trains, and are started again.

Invariant: training goes on meanwhile, nobody ends it when they are back, and within two minutes Prefect shows it as it
is. By hand the same was done with ten minutes: `AWAY_SECONDS = 600`.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.helpers.commands import call_here, processes_mentioning
from tests.helpers.operators import ENDED, PREFECT, Operator, operating_reconciled, processes_of, working
from tests.helpers.postgres_server import PACKAGE, Postgres, find_programs, made_postgres
from tests.helpers.prefect_server import find_free_port, running_prefect_server

pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        find_programs() is None, reason=f"PostgreSQL is not installed; on Debian 12: apt-get install {PACKAGE}"
    ),
]

# Longer than the minute after which the reconciler says that the server is away, and calls a silent holder dead.
AWAY_SECONDS = 120.0
STATE_SECONDS = 120.0  # within so long all is shown as it is
LOOK_SECONDS = 1.0
WORKER_QUERY_SECONDS = 30  # as deployments/README.md has it: with less, a worker ends sooner where the server is away


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with made_postgres() as postgres:
        yield postgres


def test_a_flow_run_trains_on_without_server_and_database_and_is_shown_as_it_is_when_they_are_back(
    postgres: Postgres, tmp_path: Path
) -> None:
    home, folder, port = tmp_path / "prefect", tmp_path / "operator", find_free_port()
    home.mkdir()
    folder.mkdir()
    with ExitStack() as kept:
        with postgres.serving(), running_prefect_server(home, port, database=postgres.url) as server:
            operator = kept.enter_context(operating_reconciled(folder, server))
            kept.enter_context(working(operator, PREFECT, server, folder, WORKER_QUERY_SECONDS))
            flow_run = operator.begin("away", "checkpoint.every_steps=100")
            training, ranks = operator.find_training(flow_run), processes_of(flow_run)
        step, gone_at = promoted_step(operator), time.monotonic()
        operator.wait(lambda: promoted_step(operator) > step)  # without a server
        time.sleep(max(0.0, AWAY_SECONDS - (time.monotonic() - gone_at)))  # that time is what is tested
        step = promoted_step(operator)
        with postgres.serving(), running_prefect_server(home, port, database=postgres.url):
            back_at = time.monotonic()
            print(f"away for {back_at - gone_at:.0f} s")  # shown with -s
            seen = watch_states(operator, (flow_run, training), back_at + STATE_SECONDS)
            for at, states in seen:
                print(f"{at - back_at:.0f} s after its return: {states}")
            assert set(ranks) <= set(processes_of(flow_run)), operator.worker_log.read_text()
            assert {state for _, states in seen for state in states} == {"RUNNING"}
            assert operator.flow_runs("scheduled/train") == [flow_run]  # no other was started for a dead one
            assert promoted_step(operator) > step
            operator.cancel(flow_run)
            cancelled_at = time.monotonic()
            operator.wait(lambda: are_final(operator, flow_run, training))
            print(f"cancelled within {time.monotonic() - cancelled_at:.0f} s")
            assert time.monotonic() - cancelled_at < STATE_SECONDS
            for one in (flow_run, training):
                assert operator.states(one)[-1]["type"] == "CANCELLED", operator.states(one)
            operator.wait(lambda: not processes_of(flow_run))
    (segment,) = operator.state("away").segments
    assert (segment.outcome, segment.steps_lost) == ("preempted", 0)
    assert processes_mentioning("scratch/runs/away/") == []
    audit = call_here(["audit", folder / "store/runs/away"])
    assert audit.returncode == 0, audit.stdout + audit.stderr


def watch_states(operator: Operator, flow_runs: tuple[str, ...], until: float) -> list[tuple[float, list[str]]]:
    """The types of their states whenever one has changed, with the time, until then."""
    seen: list[tuple[float, list[str]]] = []
    while time.monotonic() < until:
        states = [str(operator.states(one)[-1]["type"]) for one in flow_runs]
        if not seen or seen[-1][1] != states:
            seen.append((time.monotonic(), states))
        time.sleep(LOOK_SECONDS)  # the server is asked: it tells nobody
    return seen


def are_final(operator: Operator, flow_run: str, training: str) -> bool:
    types = {operator.states(one)[-1]["type"] for one in (flow_run, training)}
    return types | set(operator.steps(training).values()) <= set(ENDED)


def promoted_step(operator: Operator) -> int:
    promoted = operator.state("away").promoted
    assert promoted is not None
    return promoted.step
