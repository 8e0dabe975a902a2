"""An agent that is kept serves one order after another, with the bits of fresh processes, and leaves with its flow."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from storage.datasets import DatasetManifest
from storage.objects.local_store import LocalStore
from storage.runs.segments import find_outcome
from tasks.cluster.agents import KeptAgent
from tasks.cluster.processes import POLL_SECONDS
from tasks.cluster.ranks import Ranks
from tests.helpers.commands import ROOT, Runner, processes_mentioning, wait_until
from tests.helpers.datasets import publish_small_dataset
from tests.helpers.fault_plans import FaultPlan
from tests.helpers.parquet import text_columns, write_parquet
from tests.helpers.processes import RankProcesses, evaluate_as_a_rank
from tests.helpers.tiny_runs import write_tiny_configuration
from tests.helpers.training import checkpoint_at, make_spec, read_log
from training.agents.locks import find_holders
from training.spec import AdHocEvaluation, SegmentSpec

GRACE_SECONDS = 30


@dataclass(frozen=True)
class Place:
    """Segments of one data set, each by its fence."""

    store: LocalStore
    dataset: DatasetManifest
    folder: Path

    def spec(self, fence: int, from_step: tuple[int, int] | None = None, **train: object) -> SegmentSpec:
        """A segment; from the checkpoint of (step, fence), if that is given."""
        point = None if from_step is None else checkpoint_at(self.store, *from_step)
        return make_spec(self.store, self.dataset, self.folder / f"segment-{fence}", fence, point, **train)  # type: ignore[arg-type]

    def evaluation(self, fence: int, from_step: tuple[int, int]) -> SegmentSpec:
        found = self.folder / f"found-{fence}.json"
        ad_hoc = AdHocEvaluation(split="test", result_file=str(found))
        return self.spec(fence, from_step).model_copy(update={"work": "evaluate", "ad_hoc": ad_hoc})

    def files(self, step: int, fence: int) -> object:
        return checkpoint_at(self.store, step, fence).index.files


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("place")
    store = LocalStore(folder / "store")
    return Place(store, publish_small_dataset(store, folder / "work"), folder)


@pytest.fixture(scope="module")
def kept() -> Iterator[KeptAgent]:
    """One for all tests, as a flow has it: to begin an agent takes longer than a segment. Its end is the last test."""
    agent = KeptAgent()
    yield agent
    last = agent.pid
    agent.close()
    assert last is None or is_over(last)


def work(spec: SegmentSpec, kept: KeptAgent | None = None) -> int:
    """Work on an order to its end; the process of the agent that did it."""
    agents: set[int] = set()
    with Ranks(spec, GRACE_SECONDS, kept=kept) as ranks:
        while ranks.is_running(POLL_SECONDS):
            agents |= {holder.pid for holder in find_holders(spec.scratch_folder) if holder.rank is None}
    (agent,) = agents
    if spec.ad_hoc is None:
        outcome = find_outcome(spec.open_store(), spec.run, spec.fence)
        assert outcome is not None and outcome.outcome == "completed", read_log(spec)
    return agent


def is_over(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_one_agent_serves_segments_and_an_evaluation_and_each_has_the_bits_of_fresh_processes(
    place: Place, kept: KeptAgent
) -> None:
    work(place.spec(1))
    with ThreadPoolExecutor(1) as executor:  # the agent outlives the thread that gave it the first order
        first = executor.submit(work, place.spec(2), kept).result()
    assert work(place.spec(3, (7, 1)), kept) == first
    for step, fence in ((7, 2), (20, 2), (14, 3), (20, 3)):
        assert place.files(step, fence) == place.files(step, 1), (step, fence)
    RankProcesses(place.evaluation(4, (20, 1)), evaluate_as_a_rank).run()
    assert work(place.evaluation(5, (20, 1)), kept) == first
    fresh, forked = (json.loads((place.folder / f"found-{fence}.json").read_bytes()) for fence in (4, 5))
    assert fresh["evaluation"]["metrics"] and fresh == forked
    assert work(place.spec(6), kept) == first, "whatever it was asked for before"
    assert place.files(20, 6) == place.files(20, 1)
    for spec in (place.spec(2), place.spec(3)):
        assert read_log(spec).count("[rank0]: Saved step 20") == 1
        assert find_holders(spec.scratch_folder) == []


def test_all_ranks_killed_leave_the_agent_and_the_next_segment_is_forked_from_it(place: Place, kept: KeptAgent) -> None:
    spec, was_struck = place.spec(20, steps=1_000_000, ranks=2), False
    with Ranks(spec, GRACE_SECONDS, kept=kept) as ranks:
        while ranks.is_running(POLL_SECONDS):
            if not was_struck and ranks.read_reports():
                was_struck = True
                for holder in find_holders(spec.scratch_folder):
                    if holder.rank is not None:
                        os.kill(holder.pid, signal.SIGKILL)
    assert was_struck and kept.pid is not None and not is_over(kept.pid)
    assert work(place.spec(21, ranks=2), kept) == kept.pid


def test_an_agent_that_is_killed_while_it_works_is_replaced(place: Place, kept: KeptAgent) -> None:
    spec = place.spec(30, steps=1_000_000)
    with Ranks(spec, GRACE_SECONDS, kept=kept) as ranks:
        while ranks.is_running(POLL_SECONDS):
            if ranks.read_reports():
                ranks.kill()  # as where they hang
    killed = kept.pid
    assert work(place.spec(31), kept) != killed


@pytest.mark.slow
def test_an_agent_that_is_killed_while_it_idles_is_replaced(place: Place, kept: KeptAgent) -> None:
    first = work(place.spec(32), kept)
    os.kill(first, signal.SIGKILL)
    assert work(place.spec(33), kept) != first


@pytest.mark.slow
def test_an_agent_that_is_killed_before_it_takes_its_order_is_replaced(place: Place, kept: KeptAgent) -> None:
    first = work(place.spec(40), kept)
    os.kill(first, signal.SIGSTOP)
    with Ranks(place.spec(41), GRACE_SECONDS, kept=kept) as ranks:
        os.kill(first, signal.SIGKILL)
        while ranks.is_running(POLL_SECONDS):
            pass
    outcome = find_outcome(place.store, "small", 41)
    assert outcome is not None and outcome.outcome == "completed"
    assert kept.pid not in (None, first)


@pytest.mark.slow
def test_ranks_with_another_environment_are_another_agents(
    place: Place, kept: KeptAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = work(place.spec(10), kept)
    second = work(place.spec(11, threads=2), kept)
    assert second != first and is_over(first)
    assert "OMP_NUM_THREADS=2" in environment_of(kept)
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert work(place.spec(12, threads=2), kept) == second, "it was set after the agent was to be kept: by no user"
    assert "MKL_CBWR=COMPATIBLE" not in environment_of(kept)


def environment_of(kept: KeptAgent) -> list[str]:
    assert kept.pid is not None
    return Path(f"/proc/{kept.pid}/environ").read_text().split("\0")


FLOW = """
import sys, time
from tasks.cluster.agents import KeptAgent
from training.configuration import TrainConfig
kept = KeptAgent()
print(kept.begin(TrainConfig(), "encoder").pid, flush=True)
time.sleep(600)  # until it is killed
"""


@pytest.mark.parametrize("is_loaded", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_idle_agent_leaves_when_its_flow_is_killed(is_loaded: bool) -> None:
    command = [sys.executable, "-c", FLOW]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as flow:
        assert flow.stdout is not None
        pid = int(flow.stdout.readline())
        if is_loaded:
            assert wait_until(lambda: has_loaded(pid))
        flow.kill()
    assert wait_until(lambda: is_over(pid))


def has_loaded(pid: int) -> bool:
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.slow
def test_a_run_whose_ranks_are_killed_has_one_agent_until_its_end(
    tmp_path: Path, prefect_server: dict[str, str]
) -> None:
    """Of one whose ranks fail `test_equal_state.py` shows it."""
    write_parquet(tmp_path / "data" / "part-0.parquet", text_columns(200))
    configuration = write_tiny_configuration(tmp_path, "kept", tmp_path / "store", tmp_path / "data")
    settings = {"store": tmp_path / "store", "run": "kept", "train.ranks": 2, "checkpoint.every_steps": 2}
    runner = Runner(configuration, settings, prefect_server)
    plan = FaultPlan().kill_at_step(3, rank=0).kill_at_step(3, rank=1)
    with plan.injected(runner, tmp_path / "plan"):
        runner.run()
    state = runner.status()
    assert plan.fired(tmp_path / "plan") and len(state["segments"]) == 2 and state["metrics"]
    agents = [path for path in (tmp_path / "plan" / "family").iterdir() if path.name.startswith("launcher-")]
    assert len(agents) == 1
    assert is_over(int(agents[0].name.partition("-")[2]))
    assert processes_mentioning(str(tmp_path / "store")) == []
