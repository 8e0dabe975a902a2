"""Ways to end the processes of a deployed flow run: SIGTERM to its worker or to all of them, SIGKILL to its own.

Invariant of each: the steps that are lost are counted, nothing is left running, the run goes on, and within two minutes
Prefect shows each flow run and each step of it in a final state that is true. A worker and a run of its own for each.
"""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psutil
import pytest

from storage.runs.run_state import SegmentRecord
from tests.helpers.commands import call_here, processes_mentioning
from tests.helpers.operators import ENDED, PREFECT, Operator, operating_reconciled, processes_of, working
from tests.helpers.prefect_server import running_prefect_server

pytestmark = [pytest.mark.server, pytest.mark.slow]

STATE_SECONDS = 120.0  # within so long all is shown as it is
SAVES = "checkpoint.every_steps=100"  # a save is what these tests wait for
LEAVE_SECONDS = 60.0  # a save of these ranks takes a second; Prefect's own grace is 30


@dataclass(frozen=True)
class Way:
    """To end processes of a flow run that trains: of its worker, or its own."""

    name: str
    end: Callable[["subprocess.Popen[bytes]", str], None]


def terminate_tree(worker: "subprocess.Popen[bytes]", flow_run: str) -> None:
    """As an init system or a container runtime ends a service: all its processes at once."""
    for process in family_of(worker):
        process.send_signal(signal.SIGTERM)


def terminate_worker(worker: "subprocess.Popen[bytes]", flow_run: str) -> None:
    worker.send_signal(signal.SIGTERM)


def kill_engine(worker: "subprocess.Popen[bytes]", flow_run: str) -> None:
    """The flow run's own process, and neither the worker above nor the ranks below it."""
    psutil.Process(min(processes_of(flow_run), key=lambda pid: psutil.Process(pid).create_time())).kill()


WAYS = (
    Way("terminated-tree", terminate_tree),
    Way("terminated-worker", terminate_worker),
    Way("killed-engine", kill_engine),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Of its own, as in `test_flow_run_ends.py`."""
    with running_prefect_server(tmp_path_factory.mktemp("prefect")) as environment:
        yield environment


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory, server: dict[str, str]) -> Iterator[Operator]:
    with operating_reconciled(tmp_path_factory.mktemp("operator"), server) as operator:
        yield operator


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_ranks_whose_supervisor_is_ended_save_and_leave_and_the_next_flow_run_says_what_became_of_the_last(
    way: Way, operator: Operator, server: dict[str, str]
) -> None:
    with working(operator, PREFECT, server, operator.folder) as worker:
        flow_run = operator.begin(way.name, SAVES)
        training = operator.find_training(flow_run)
        family = [psutil.Process(pid) for pid in processes_of(flow_run)]
        deadline = time.monotonic() + STATE_SECONDS
        way.end(worker, flow_run)
        _, left = psutil.wait_procs(family, timeout=LEAVE_SECONDS)
        assert left == [], operator.worker_log.read_text()
    with working(operator, PREFECT, server, operator.folder):
        following = operator.submit("resume/resume", store="store", run=way.name)
        wait_for_final_states(operator, flow_run, training, deadline)
        print(f"{way.name}: final after {STATE_SECONDS - deadline + time.monotonic():.0f} s")  # shown with -s
        operator.wait(lambda: operator.segment_has_saved(2, way.name))
        end(operator, way.name, following)
    segment = operator.state(way.name).segments[0]
    assert (segment.outcome, segment.steps_lost, segment.is_abandoned) == ("preempted", 0, True)
    assert operator.states(flow_run)[-1]["type"] == "CRASHED"
    require_intact(operator, way.name)


def family_of(worker: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    root = psutil.Process(worker.pid)
    return [root, *root.children(recursive=True)]


def wait_for_final_states(operator: Operator, flow_run: str, training: str, deadline: float) -> None:
    """Of a flow run, the one below it, and its steps."""

    def are_final() -> bool:
        types = {operator.states(one)[-1]["type"] for one in (flow_run, training)}
        return (types | set(operator.steps(training).values())) <= set(ENDED)

    operator.wait(lambda: are_final() or time.monotonic() > deadline)
    assert are_final(), (operator.states(flow_run)[-1], operator.states(training)[-1], operator.steps(training))


def end(operator: Operator, run: str, flow_run: str) -> None:
    """Stop the run, and wait for the flow run that trains it."""
    stopped = call_here(["stop", operator.folder / "store/runs" / run])
    assert stopped.returncode == 0, stopped.stderr
    operator.wait(lambda: operator.states(flow_run)[-1]["type"] in ENDED)
    operator.wait(lambda: not processes_of(flow_run))
    assert processes_mentioning(f"scratch/runs/{run}/") == []


def require_intact(operator: Operator, run: str) -> None:
    """Each segment begins where the resume point was, and the ledger has every sample once."""
    segments = operator.state(run).segments
    assert [later.first_step for later in segments[1:]] == [resume_step(earlier) for earlier in segments[:-1]]
    audit = call_here(["audit", operator.folder / "store/runs" / run])
    assert audit.returncode == 0, audit.stdout + audit.stderr


def resume_step(segment: SegmentRecord) -> int:
    return segment.last_step - segment.steps_lost
