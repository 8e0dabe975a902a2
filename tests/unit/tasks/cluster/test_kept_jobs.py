"""When a job is done with a segment that was lost, and which of its nodes go on with the next one."""

import threading
from pathlib import Path

import pytest

from storage.errors import ClusterUnavailableError
from storage.objects.local_store import LocalStore
from storage.runs.holders import this_process
from storage.runs.run_state import JobRecord
from storage.runs.segments import OutcomeRecord, write_outcome
from storage.runs.transitions import end_evaluation, take_lease
from tasks.cluster import idle_nodes as idle
from tasks.cluster.idle_nodes import may_wait_idle, wait_idle
from tasks.cluster.node_identity import NodeIdentity
from tasks.cluster.orders import JobOrder, NodeEnd, read_node_ends, write_node_end, write_order
from tasks.cluster.requests import Requests
from tasks.cluster.slurm import job as job_module
from tasks.cluster.slurm import nodes as nodes_module
from tasks.cluster.slurm.commands import SlurmState
from tasks.cluster.slurm.job import SlurmJob
from tasks.cluster.slurm.nodes import ANSWERING_SECONDS, FOLLOWING_SECONDS, SegmentNodes
from tasks.configuration.cluster import ClusterConfig
from tests.helpers.commands import wait_until
from tests.helpers.finished_runs import dataset_of
from tests.helpers.runs import lease_run, make_run
from tests.helpers.training import make_spec

RUN, JOB = "small", "holdfast-small-2"


class Clock:
    """Stands for the module `time`."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Job:
    """Three nodes that work for fence 2, as Slurm lists them and as they write their ends."""

    def __init__(self, folder: Path, nodes: list[str] | None = None) -> None:
        self.store = LocalStore(folder / "store")
        self.nodes = SegmentNodes(self.store, RUN, 2, JOB, nodes)
        self.held = "n1 n2 n3"

    def end(self, **how: str) -> None:
        for node, word in how.items():
            end = {"job": JOB, "node": node, "claim": int(word == "joined"), "how": word}  # those that met do not join
            write_node_end(self.store, RUN, 2, NodeEnd.model_validate(end))

    def look(self) -> SegmentNodes:
        self.nodes.look(self.held)
        return self.nodes

    def ends(self) -> dict[str, str]:
        return {end.node: end.how for end in read_node_ends(self.store, RUN, 2)}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(nodes_module, "time", clock)
    monkeypatch.setattr(nodes_module, "list_names", str.split)
    return clock


@pytest.fixture
def job(clock: Clock, tmp_path: Path) -> Job:
    job = Job(tmp_path)
    job.look()
    return job


def test_while_all_nodes_work_nothing_is_to_be_done(job: Job) -> None:
    nodes = job.look()
    assert (nodes.must_be_killed(is_wanted=False), nodes.are_idle, nodes.have_left) == (False, False, False)


def test_when_one_node_rests_the_others_have_a_while_to_notice_and_are_then_told(job: Job, clock: Clock) -> None:
    job.end(n2="idle")
    assert not job.look().must_be_killed(is_wanted=False)
    clock.now += FOLLOWING_SECONDS
    assert job.look().must_be_killed(is_wanted=False)
    job.nodes.note_killed()
    assert not job.look().must_be_killed(is_wanted=False)
    job.end(n1="idle", n3="idle")
    assert job.look().are_idle and job.nodes.describe_lost() is None


def test_a_node_that_slurm_has_given_up_is_lost_and_the_others_are_told_at_once(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.held = "n1 n3"
    assert job.look().must_be_killed(is_wanted=False)
    job.end(n1="idle", n3="idle")
    assert job.look().are_idle
    assert job.ends() == {"n1": "idle", "n2": "lost", "n3": "idle"}
    monkeypatch.setattr(nodes_module, "find_lost_nodes", lambda names: [f"{names} (Not responding)"])
    assert job.nodes.describe_lost() == "Slurm reports NodeDown: n2 (Not responding)"


def test_of_a_job_that_was_given_back_and_whose_answer_was_lost_it_is_said_which_node_was(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_lost(_number: int) -> None:
        raise ClusterUnavailableError("scancel: timed out")

    said = iter([SlurmState("RUNNING", nodes="n2 n3"), SlurmState("CANCELLED", nodes="n2 n3")])
    monkeypatch.setattr(job_module, "read_state", lambda _number, _name: next(said))
    monkeypatch.setattr(job_module, "give_back", is_lost)
    monkeypatch.setattr(job_module, "ASK_SECONDS", 0)
    monkeypatch.setattr(nodes_module, "find_lost_nodes", lambda _names: ["n1 (Not responding)"])
    job.end(n1="lost", n2="left", n3="left")
    slurm = SlurmJob(JOB, job.store, RUN, 2, grace_seconds=1)
    assert slurm.is_running(0) and not slurm.is_running(0)
    assert slurm.describe_end() == "Slurm reports NodeDown: n1 (Not responding)"


def test_a_node_that_does_not_answer_is_lost_before_slurm_gives_it_up(
    job: Job, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert job.look().must_be_killed(is_wanted=True)  # the ranks hang
    job.nodes.note_killed()
    job.end(n1="idle", n2="idle")
    assert not job.look().are_idle
    clock.now += ANSWERING_SECONDS
    assert job.look().are_idle and job.ends()["n3"] == "lost"
    monkeypatch.setattr(nodes_module, "find_lost_nodes", lambda names: [])
    assert job.nodes.describe_lost() == "No answer came from n3"


def test_a_job_of_which_no_node_answers_is_given_back(job: Job, clock: Clock) -> None:
    job.held = "n2 n3"  # the node of the batch script is gone, and what ran on the others with it
    assert job.look().must_be_killed(is_wanted=False)
    job.nodes.note_killed()
    clock.now += ANSWERING_SECONDS
    assert job.look().have_left and not job.nodes.are_idle
    assert set(job.ends().values()) == {"lost"}


def test_nodes_that_rest_are_found_by_whoever_looks_later(job: Job, clock: Clock, tmp_path: Path) -> None:
    job.end(n1="idle", n2="failed", n3="idle")
    assert Job(tmp_path).look().are_idle
    assert Job(tmp_path).nodes.find_idle_nodes("n1 n2") == ["n1"]


def test_a_job_whose_nodes_have_left_but_for_a_lost_one_does_not_end_by_itself(job: Job, clock: Clock) -> None:
    job.end(n1="left", n3="left")
    assert not job.look().have_left
    job.held = "n1 n3"
    assert job.look().have_left and not job.nodes.are_idle


def test_a_job_does_not_end_by_itself_either_where_the_lost_node_came_back_and_left(job: Job, clock: Clock) -> None:
    job.end(n2="lost")  # say the others, which train on
    assert not job.look().must_be_killed(is_wanted=False)
    job.held = "n1 n3"
    assert not job.look().must_be_killed(is_wanted=False)
    job.end(n2="left")
    assert not job.look().have_left
    job.end(n1="left", n3="left")
    assert job.look().have_left and not job.nodes.are_idle


def test_of_a_job_that_served_a_segment_before_only_its_own_nodes_count(clock: Clock, tmp_path: Path) -> None:
    job = Job(tmp_path, nodes=["n1", "n3"])
    assert not job.look().must_be_killed(is_wanted=False)
    job.end(n1="left", n3="left")
    assert job.look().have_left


class Idle:
    """A node whose segment was lost, in a thread of its own, and the run that it waits for."""

    def __init__(self, folder: Path, keep_seconds: float = 60) -> None:
        self.store = LocalStore(folder / "store")
        self.manifest = make_run(self.store, RUN)
        self.fence = lease_run(self.manifest, ranks=2)
        self.requests = Requests()
        self.order = self.order_for(self.fence, folder, keep_seconds)
        self.found: list[tuple[JobOrder, NodeIdentity] | None] = []
        self._thread = threading.Thread(target=self._rest)

    def order_for(self, fence: int, folder: Path, keep_seconds: float = 60) -> JobOrder:
        spec = make_spec(self.store, dataset_of(["a", "b"], "multiclass", "label"), folder / "scratch", fence)
        return JobOrder(segment=spec, cluster=ClusterConfig(kind="slurm"), grace_seconds=1, keep_seconds=keep_seconds)

    def begin(self) -> None:
        self._thread.start()
        assert wait_until(lambda: self.how() == "idle")

    def lease_next(self, job: JobRecord | None) -> int:
        self.manifest.commit("ended", end_evaluation(self.fence))
        lease = self.manifest.commit("next", take_lease(this_process(), 2, job=lambda _: job)).state.lease
        assert lease is not None
        return lease.fence

    def wait(self) -> tuple[JobOrder, NodeIdentity] | None:
        self._thread.join(60)
        return self.found[0]

    def how(self) -> str | None:
        return next((end.how for end in read_node_ends(self.store, RUN, self.fence)), None)

    def _rest(self) -> None:
        identity = NodeIdentity(node="n1", incarnation="7.0", num_nodes=3, job=JOB)
        self.found.append(wait_idle(self.store, self.order, identity, self.requests, claim=0))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Idle:
    monkeypatch.setattr(idle, "LOOK_SECONDS", 0.05)
    return Idle(tmp_path)


def test_a_idle_node_takes_the_next_segment_of_its_job_once_its_order_is_there(node: Idle, tmp_path: Path) -> None:
    node.begin()
    node.requests.is_for_end = True
    fence = node.lease_next(JobRecord(kind="slurm", name=JOB, nodes=["n1", "n3"]))
    write_order(node.store, node.order_for(fence, tmp_path))
    order, identity = node.wait() or (None, None)
    assert order is not None and order.segment.fence == fence
    assert identity == NodeIdentity(node="n1", incarnation="7.0", num_nodes=2, job=JOB)
    assert not node.requests.is_for_end  # it was for the ranks of the segment before
    assert node.how() == "idle"


@pytest.mark.parametrize(
    "job",
    [
        JobRecord(kind="slurm", name=JOB, nodes=["n2", "n3"]),
        JobRecord(kind="slurm", name="holdfast-small-3"),
        None,
    ],
    ids=["of the other nodes", "of another job", "on the command's machine"],
)
def test_a_idle_node_leaves_when_the_next_segment_is_not_its(node: Idle, job: JobRecord | None) -> None:
    node.begin()
    node.lease_next(job)
    assert node.wait() is None and node.how() == "left"


def test_a_idle_node_leaves_when_it_is_asked_to(node: Idle) -> None:
    node.begin()
    node.requests.is_stop = True
    assert node.wait() is None and node.how() == "left"


def test_a_idle_node_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled: list[int] = []
    monkeypatch.setattr(idle, "cancel", cancelled.append)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(idle, "LOOK_SECONDS", 0.05)
    node = Idle(tmp_path, keep_seconds=0.3)
    node.begin()
    assert node.wait() is None and node.how() == "left"
    assert cancelled == [7]


@pytest.mark.parametrize(
    ("outcome", "is_final", "may"),
    [("failed", False, True), ("failed", True, False), ("completed", False, False), ("preempted", False, False)],
)
def test_only_after_a_segment_that_was_lost_nodes_wait(node: Idle, outcome: str, is_final: bool, may: bool) -> None:
    assert may_wait_idle(node.store, node.order, node.requests)
    record = OutcomeRecord(
        outcome=outcome, cause="", is_final=is_final, first_step=0, last_step=1, world_size=2, seconds=1, phases={}
    )
    write_outcome(node.store, RUN, node.fence, record)
    assert may_wait_idle(node.store, node.order, node.requests) is may
    node.requests.is_stop = True
    assert not may_wait_idle(node.store, node.order, node.requests)
    assert not may_wait_idle(node.store, node.order.model_copy(update={"keep_seconds": 0}), Requests())


def test_a_node_that_was_lost_and_came_back_is_there_whether_slurm_still_lists_it_or_not(job: Job) -> None:
    job.end(n3="lost")
    job.end(n3="joined")
    job.end(n1="left", n2="left")
    nodes = job.look()
    assert not nodes.have_left and not nodes.must_be_killed(is_wanted=False) and nodes.describe_lost() is None
    job.held = "n1 n2"
    nodes = job.look()
    assert nodes.have_left and not nodes.must_be_killed(is_wanted=False)
    assert job.ends() == {"n1": "left", "n2": "left", "n3": "joined"}
