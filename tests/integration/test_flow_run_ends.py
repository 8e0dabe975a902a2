"""How flow runs end, and what Prefect shows of them and of their steps: suspended, killed, busy.

One worker, and a run of its own for each test. A stop by the store is in `test_deployments.py`; what is said of flow
runs whose process was killed, without a worker and without training, in `test_flow_run_states.py`.
"""

import time
from collections.abc import Iterator

import pytest

from tasks.cluster.processes import kill_tree
from tests.helpers.commands import call_here
from tests.helpers.operators import ENDED, PREFECT, Operator, operating, processes_of, working
from tests.helpers.prefect_server import running_prefect_server

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Of its own: on the one that all tests share, deployments of the same names would take turns."""
    with running_prefect_server(tmp_path_factory.mktemp("prefect")) as environment:
        yield environment


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory, server: dict[str, str]) -> Iterator[Operator]:
    with operating(tmp_path_factory.mktemp("operator"), server) as operator:
        yield operator


@pytest.fixture(scope="module")
def worked(operator: Operator, server: dict[str, str]) -> Iterator[Operator]:
    with working(operator, PREFECT, server, operator.folder):
        yield operator


# The first, since later ones share a worker, which would take its flow runs too.
def test_after_a_worker_is_killed_with_all_it_started_the_next_one_goes_on_and_nothing_is_shown_as_running(
    operator: Operator, server: dict[str, str]
) -> None:
    with working(operator, PREFECT, server, operator.folder) as worker:
        flow_run = operator.begin("killed")
        kill_tree(worker.pid)
    began = time.monotonic()
    with working(operator, PREFECT, server, operator.folder):
        following = operator.submit("resume/resume", store="store", run="killed")
        operator.wait(lambda: operator.segment_has_saved(2, "killed"))
        print(f"from the kill to a new checkpoint: {time.monotonic() - began:.1f} s")  # shown with -s
        training = operator.find_training(flow_run)
        for one in (flow_run, training):
            state = operator.states(one)[-1]
            assert state["type"] == "CRASHED"
            assert "was killed" in state["message"]
        operator.wait(lambda: set(operator.steps(training).values()) <= set(ENDED))
        call_here(["stop", operator.folder / "store/runs/killed"])
        operator.wait(lambda: operator.states(following)[-1]["type"] in ENDED)
    (lost, stopped) = operator.state("killed").segments
    assert (lost.outcome, stopped.outcome) == ("lost", "preempted")


def test_a_suspended_flow_run_saves_and_its_resume_goes_on(worked: Operator) -> None:
    flow_run = worked.begin("suspended")
    worked.suspend(flow_run)
    worked.wait(lambda: worked.state("suspended").lease is None)
    worked.wait(lambda: not processes_of(flow_run))
    (segment,) = worked.state("suspended").segments
    assert (segment.outcome, segment.steps_lost) == ("preempted", 0)
    # Once by the person, once more by the process, as the last that is heard of it.
    assert [state["name"] for state in worked.states(flow_run)][-2:] == ["Suspended", "Suspended"]
    training = worked.find_training(flow_run)
    assert worked.states(training)[-1]["name"] == "Suspended"
    worked.wait(lambda: set(worked.steps(training).values()) <= set(ENDED))
    worked.resume(flow_run)
    worked.wait(lambda: worked.segment_has_saved(2, "suspended"))
    worked.cancel(flow_run)
    worked.wait(lambda: worked.states(flow_run)[-1]["type"] in ENDED)
    assert worked.states(flow_run)[-1]["type"] == "CANCELLED", worked.worker_log.read_text()
    assert worked.state("suspended").segments[1].first_step == segment.last_step


def test_a_flow_run_too_many_is_skipped_with_all_that_belongs_to_it(worked: Operator) -> None:
    flow_run = worked.begin("busy")
    for name, parameters in (
        ("scheduled/train", {"configuration": "tiny.toml", "assignments": ["run=busy"]}),
        ("resume/resume", {"store": "store", "run": "busy"}),
    ):
        extra = worked.run(name, **parameters)
        assert (extra["state"]["type"], extra["state"]["name"]) == ("COMPLETED", "Skipped"), extra
        assert worked.states(worked.find_training(extra["id"]))[-1]["name"] == "Skipped"
    assert worked.state("busy").lease is not None
    call_here(["stop", worked.folder / "store/runs/busy"])
    worked.wait(lambda: worked.states(flow_run)[-1]["type"] in ENDED)
