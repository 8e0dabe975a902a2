"""A flow run that trains on though it was taken for dead or begun again: stopped, rescheduled, misreported.

Invariant of each: no two processes train the run, the model is the one of a run that was left alone, the steps that are
lost are counted, nothing is left running, and within two minutes Prefect shows each flow run and each step as it is.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence

import pytest

from tests.helpers.commands import COMMAND, ROOT, call_here, processes_mentioning
from tests.helpers.operators import ENDED, PREFECT, Operator, operating_reconciled, processes_of, working
from tests.helpers.prefect_server import running, running_prefect_server

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(1800)]

# Longer than a heartbeat is waited for before a run is taken, which is a minute. Once it was ten minutes.
STOPPED_SECONDS = 70.0
STATE_SECONDS = 120.0  # within so long all is shown as it is
STEPS = 800
SAVES = "checkpoint.every_steps=100"  # a save is what these tests wait for
# A process in there is not seen from here, as one on another machine is not.
ELSEWHERE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def find_reason_to_skip() -> str | None:
    tried = subprocess.run([*ELSEWHERE, "true"], capture_output=True, text=True)
    return f"this system refuses PID namespaces: {tried.stderr.strip()}" if tried.returncode else None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Of its own, as in `test_flow_run_ends.py`."""
    with running_prefect_server(tmp_path_factory.mktemp("prefect")) as environment:
        yield environment


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory, server: dict[str, str]) -> Iterator[Operator]:
    with operating_reconciled(tmp_path_factory.mktemp("operator"), server) as operator:
        yield operator


@pytest.fixture(scope="module")
def worked(operator: Operator, server: dict[str, str]) -> Iterator[Operator]:
    """There is a worker, as in README.md."""
    with working(operator, PREFECT, server, operator.folder, most_flow_runs=None):
        yield operator


@pytest.fixture(scope="module")
def weights(worked: Operator) -> str:
    """Of the model that the same configuration gives where nothing happens."""
    assignments = ["run=untouched", SAVES, f"train.steps={STEPS}"]
    trained = worked.run("scheduled/train", configuration="tiny.toml", assignments=assignments)
    assert trained["state"]["type"] == "COMPLETED", worked.worker_log.read_text()
    return weights_of(worked, "untouched")


# The first, since later ones share a worker, which would take its flow runs too.
def test_where_the_reschedule_ends_a_worker_that_has_a_limit_the_next_worker_goes_on_with_the_flow_run(
    operator: Operator, server: dict[str, str]
) -> None:
    with working(operator, PREFECT, server, operator.folder) as worker:
        flow_run = operator.begin("limited", SAVES)
        training = operator.find_training(flow_run)
        operator.reschedule(flow_run)
        operator.wait(lambda: worker.poll() is not None)  # an error of Prefect's: its limit counts a flow run once
    with working(operator, PREFECT, server, operator.folder):
        operator.wait(lambda: operator.segment_has_saved(2, "limited"))
        end(operator, "limited", flow_run, training)
    assert [segment.steps_lost for segment in operator.state("limited").segments] == [0, 0]


def test_a_flow_run_that_is_called_crashed_while_it_trains_is_shown_as_running_again_and_can_be_cancelled(
    worked: Operator,
) -> None:
    flow_run = worked.begin("misreported", SAVES)
    training = worked.find_training(flow_run)
    for one in (flow_run, training):
        worked.call_crashed(one)
    began = time.monotonic()
    worked.wait(lambda: {worked.states(one)[-1]["type"] for one in (flow_run, training)} == {"RUNNING"})
    print(f"shown as running after {time.monotonic() - began:.0f} s")  # shown with -s
    assert time.monotonic() - began < STATE_SECONDS
    worked.cancel(flow_run)
    wait_for_final_states(worked, flow_run, training)
    for one in (flow_run, training):
        assert worked.states(one)[-1]["type"] == "CANCELLED", worked.states(one)
    worked.wait(lambda: not processes_of(flow_run))
    (segment,) = worked.state("misreported").segments
    assert (segment.outcome, segment.steps_lost) == ("preempted", 0)


def test_a_flow_run_that_is_rescheduled_while_it_trains_is_gone_on_with_by_a_process_that_waits_for_the_first(
    worked: Operator,
) -> None:
    flow_run = worked.begin("rescheduled", SAVES)
    training, first = worked.find_training(flow_run), processes_of(flow_run)
    worked.reschedule(flow_run)
    began = time.monotonic()
    worked.wait(lambda: worked.segment_has_saved(2, "rescheduled"))
    print(f"gone on with after {time.monotonic() - began:.0f} s")  # shown with -s
    assert not set(first) & set(processes_of(flow_run))
    for one in (flow_run, training):
        assert worked.states(one)[-1]["type"] == "RUNNING", worked.states(one)
    assert worked.find_training(flow_run) == training
    end(worked, "rescheduled", flow_run, training)
    assert [segment.steps_lost for segment in worked.state("rescheduled").segments] == [0, 0]


def test_a_flow_run_that_stood_still_goes_on_where_nobody_took_the_run_and_whoever_wants_it_is_told_why(
    worked: Operator, weights: str
) -> None:
    flow_run = worked.begin("paused", SAVES, f"train.steps={STEPS}")
    training, stopped_at = worked.find_training(flow_run), time.monotonic()
    family = stop(processes_of(flow_run))
    worked.wait(lambda: status_of(worked, "paused") == "silent")
    tick = worked.run("scheduled/train", configuration="tiny.toml", assignments=["run=paused", SAVES])
    assert (tick["state"]["type"], tick["state"]["name"]) == ("COMPLETED", "Skipped"), tick
    assert "is stopped (by SIGSTOP, Ctrl-Z or a debugger)" in tick["state"]["message"]
    worked.wait(lambda: bool(worked.events("holdfast.no-progress", f"holdfast.{worked.folder}/store/runs/paused")))
    worked.wait(lambda: worked.states(flow_run)[-1]["type"] == "CRASHED")  # by the reconciler
    time.sleep(max(0.0, STOPPED_SECONDS - (time.monotonic() - stopped_at)))  # that time is what is tested
    go_on(family)
    worked.wait(lambda: worked.state("paused").is_complete)
    wait_for_final_states(worked, flow_run, training)
    for one in (flow_run, training):
        assert worked.states(one)[-1]["type"] == "COMPLETED", worked.states(one)
    worked.wait(lambda: not processes_of(flow_run))
    (segment,) = worked.state("paused").segments
    assert (segment.outcome, segment.steps_lost) == ("completed", 0)
    require_same_model(worked, "paused", weights)


@pytest.mark.skipif(find_reason_to_skip() is not None, reason=str(find_reason_to_skip()))
def test_a_flow_run_that_stood_still_while_another_took_the_run_promotes_nothing_and_ends(
    worked: Operator, server: dict[str, str], weights: str
) -> None:
    flow_run = worked.begin("taken", SAVES, f"train.steps={STEPS}")
    training, fence = worked.find_training(flow_run), fence_of(worked, "taken")
    family = stop(processes_of(flow_run))
    command = [*ELSEWHERE, *train(worked, "taken"), "--set", f"scratch={worked.folder / 'elsewhere'}"]
    with running(command, server, worked.folder / "elsewhere.log", ROOT) as taker:
        worked.wait(lambda: len(worked.state("taken").segments) == 1)  # it waits a minute for a heartbeat before
        worked.wait(lambda: worked.segment_has_saved(2, "taken"))
        go_on(family)
        continued_at = time.monotonic()
        worked.wait(lambda: not processes_of(flow_run))
        print(f"gone after {time.monotonic() - continued_at:.0f} s")  # shown with -s
        wait_for_final_states(worked, flow_run, training)
        assert time.monotonic() - continued_at < STATE_SECONDS
        assert taker.wait(STATE_SECONDS) == 0, (worked.folder / "elsewhere.log").read_text()
    for one in (flow_run, training):
        shown = worked.states(one)[-1]
        assert (shown["type"], shown["name"]) == ("COMPLETED", "Skipped"), worked.states(one)
    state = worked.state("taken")
    (lost, completed) = state.segments
    assert (lost.fence, lost.outcome, completed.outcome) == (fence, "lost", "completed")
    assert lost.steps_lost == lost.last_step - completed.first_step
    assert {record.fence for record in state.kept if record.step > completed.first_step} == {completed.fence}
    require_same_model(worked, "taken", weights)


def train(operator: Operator, run: str) -> list[str]:
    """The command that trains a run by the same configuration."""
    settings = ["--set", f"run={run}", "--set", SAVES, "--set", f"train.steps={STEPS}"]
    return [*COMMAND, "run", str(operator.folder / "tiny.toml"), *settings]


def stop(pids: Sequence[int]) -> list[int]:
    """SIGSTOP them; those that were there to be stopped."""
    return [pid for pid in pids if _send(pid, signal.SIGSTOP)]


def go_on(pids: Sequence[int]) -> None:
    for pid in pids:
        _send(pid, signal.SIGCONT)


def _send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False  # one that had little to do, and has ended meanwhile
    return True


def status_of(operator: Operator, run: str) -> str:
    """The word of `holdfast status`."""
    shown = call_here(["status", operator.folder / "store/runs" / run])
    assert shown.returncode == 0, shown.stderr
    return str(shown.stdout.split()[2])


def fence_of(operator: Operator, run: str) -> int:
    lease = operator.state(run).lease
    assert lease is not None
    return lease.fence


def weights_of(operator: Operator, run: str) -> str:
    promoted = operator.state(run).promoted
    assert promoted is not None
    return promoted.weights_sha256


def wait_for_final_states(operator: Operator, flow_run: str, training: str) -> None:
    """Of a flow run, the one below it, and its steps; in time."""
    deadline = time.monotonic() + STATE_SECONDS

    def are_final() -> bool:
        types = {operator.states(one)[-1]["type"] for one in (flow_run, training)}
        return types | set(operator.steps(training).values()) <= set(ENDED)

    operator.wait(lambda: are_final() or time.monotonic() > deadline)
    print(f"final after {STATE_SECONDS - deadline + time.monotonic():.0f} s")  # shown with -s
    assert are_final(), (operator.states(flow_run)[-1], operator.states(training)[-1], operator.steps(training))


def end(operator: Operator, run: str, flow_run: str, training: str) -> None:
    """Stop the run; its flow run ends as cancelled, once, and nothing is left."""
    stopped = call_here(["stop", operator.folder / "store/runs" / run])
    assert stopped.returncode == 0, stopped.stderr
    wait_for_final_states(operator, flow_run, training)
    for one in (flow_run, training):
        assert operator.states(one)[-1]["type"] == "CANCELLED", operator.states(one)
    operator.wait(lambda: not processes_of(flow_run))
    assert processes_mentioning(f"scratch/runs/{run}/") == []
    require_intact(operator, run)


def require_same_model(operator: Operator, run: str, weights: str) -> None:
    assert weights_of(operator, run) == weights
    assert processes_mentioning(f"/runs/{run}/") == []
    require_intact(operator, run)


def require_intact(operator: Operator, run: str) -> None:
    """The ledger has every sample once."""
    audit = call_here(["audit", operator.folder / "store/runs" / run])
    assert audit.returncode == 0, audit.stdout + audit.stderr
