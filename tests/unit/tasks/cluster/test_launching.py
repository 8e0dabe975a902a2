"""What nodes and their supervisor tell each other through the store, and how nodes find each other."""

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import ValidationError

from storage.errors import ClusterUnavailableError, ConfigurationError, StoreUnavailableError
from storage.logs import MOST_LOG_BYTES, StoredLog, read_logs
from storage.objects.local_store import LocalStore
from tasks.cluster.orders import (
    FirstNode,
    elect_first_node,
    read_node_statuses,
    read_rank_ends,
    read_reports,
    write_rank_ends,
)
from tasks.cluster.ranks import Rendezvous
from tasks.cluster.relay import MOST_EVENTS, Relay
from tasks.cluster.relayed import describe_relayed_ends
from tasks.cluster.rendezvous import NodeMeeting, introduce
from tasks.cluster.slurm import commands, nodes
from tasks.cluster.slurm import job as slurm_job
from tasks.cluster.slurm.commands import SlurmState, require_acceptable
from tasks.cluster.slurm.job import SlurmJob
from tasks.cluster.slurm.submission import submission
from tasks.configuration.cluster import ClusterConfig
from tasks.configuration.run import DataConfig, RunConfig
from tests.helpers.commands import wait_until
from tests.helpers.finished_runs import dataset_of
from tests.helpers.training import make_spec
from training.agents.ends import RankEnd, RankEnds, write_ends
from training.configuration import TrainConfig
from training.meeting import Address
from training.metrics.reporter import CheckpointReport, Report
from training.rank_status import Phase, RankStatus, rank_status_file
from training.views.folder import ViewFolder
from training.views.view import Going, LostMember, Member, View

RUN, FENCE = "run", 7
EARS = {"n1": 1001, "n2": 1002, "n3": 1003}


class Node:
    """What a node's ranks leave on its disk, and the relay that passes it on."""

    def __init__(self, folder: Path, store: Any) -> None:
        self.progress, self.log = folder / "progress.jsonl", folder / "ranks.log"
        self.store = store
        spec = make_spec(store, dataset_of(["a", "b"], "multiclass", "label"), folder, FENCE).model_copy(
            update={"run": RUN}
        )
        self.relay = Relay(store, spec, "n1")

    def report(self, *reports: Report) -> None:
        with self.progress.open("a") as file:
            file.writelines(f"{report.model_dump_json()}\n" for report in reports)

    def pass_on(self) -> list[Report]:
        """What the store has of the reports afterwards."""
        self.relay.pass_on(at_once=True)
        all_live = read_reports(self.store, RUN, FENCE).values()
        return [numbered.report for live in all_live for numbered in live.reports]


class FailingStore(LocalStore):
    """Takes nothing while `fails`."""

    fails = False

    def write(self, key: str, data: bytes) -> None:
        if self.fails:
            raise StoreUnavailableError("no answer")
        super().write(key, data)


def step(number: int) -> Report:
    return Report(phase="train", step=number)


def saved(number: int) -> Report:
    return Report(phase="train", step=number, checkpoint=CheckpointReport(path=f"step-{number}", step=number))


def test_of_plain_progress_the_newest_is_passed_on_and_what_is_said_once_all_of_it(tmp_path: Path) -> None:
    node = Node(tmp_path, LocalStore(tmp_path / "store"))
    assert node.pass_on() == []
    node.report(step(1), saved(2), step(3), step(4))
    assert node.pass_on() == [saved(2), step(4)]
    node.report(saved(5))
    assert node.pass_on() == [saved(2), saved(5)]
    node.report(step(6))
    assert node.pass_on() == [saved(2), saved(5), step(6)]
    (live,) = read_reports(node.store, RUN, FENCE).values()
    assert [numbered.number for numbered in live.reports] == [2, 5, 6]


def test_what_is_kept_for_a_reader_has_a_limit(tmp_path: Path) -> None:
    node = Node(tmp_path, LocalStore(tmp_path / "store"))
    node.report(*(saved(number) for number in range(3 * MOST_EVENTS)))
    assert [report.step for report in node.pass_on()] == list(range(2 * MOST_EVENTS - 1, 3 * MOST_EVENTS))


def test_what_a_store_did_not_take_is_put_the_next_time(tmp_path: Path) -> None:
    store = FailingStore(tmp_path / "store")
    node = Node(tmp_path, store)
    node.report(saved(1))
    node.log.write_text("said\n")
    store.fails = True
    assert node.pass_on() == [] and not node.relay.pass_on(at_once=True)
    store.fails = False
    assert node.pass_on() == [saved(1)]
    assert read_logs(store, RUN, FENCE) == [StoredLog("n1", 0, b"said\n")]


def test_where_ranks_are_is_passed_on_with_the_cluster_s_name_for_their_machine(tmp_path: Path) -> None:
    node = Node(tmp_path, LocalStore(tmp_path / "store"))
    node.pass_on()
    assert read_node_statuses(node.store, RUN, FENCE) == []
    rank_status = RankStatus(rank=3, host="vm", beat=1, step=5, phase=Phase.OTHERS, seconds=2, microbatches=9, spent={})
    rank_status_file(tmp_path, 3).write_text(rank_status.model_dump_json())
    wait_until(lambda: bool(node.pass_on() or read_node_statuses(node.store, RUN, FENCE)))
    assert read_node_statuses(node.store, RUN, FENCE) == [rank_status.model_copy(update={"host": "n1"})]


def test_how_ranks_ended_is_passed_on_with_the_cluster_s_name_for_their_machine_when_it_is_new(tmp_path: Path) -> None:
    store = FailingStore(tmp_path / "store")
    node = Node(tmp_path, store)
    node.pass_on()
    assert read_rank_ends(store, RUN, FENCE) == {}
    ends = [RankEnd(rank=rank, pid=rank, host="vm", signal=9) for rank in (1, 0)]
    write_ends(tmp_path, RankEnds(ends=ends[:1]))
    store.fails = True
    assert not node.relay.pass_on(at_once=True)
    store.fails = False
    for known in (ends[:1], ends):
        write_ends(tmp_path, RankEnds(ends=known))
        node.pass_on()
        named = [end.model_copy(update={"host": "n1"}) for end in known]
        assert read_rank_ends(store, RUN, FENCE) == {"n1": RankEnds(ends=named)}
    store.fails = True
    assert node.relay.pass_on(at_once=True)  # nothing is new, and nothing is written


def test_an_end_counts_until_the_others_train_on(tmp_path: Path) -> None:
    store, views = LocalStore(tmp_path / "store"), ViewFolder(tmp_path)
    node = Node(tmp_path, store)
    views.create()
    lost = LostMember(member=Member(slot=1, life=0), pid=7, signal=9)
    views.commit(View(number=1, members=[Member(slot=0, life=0)], lost=[lost], committed_at=0.0))
    end = RankEnd(rank=1, pid=7, host="n1", signal=9)
    write_ends(tmp_path, RankEnds(ends=[end]))
    node.pass_on()
    assert read_rank_ends(store, RUN, FENCE) == {"n1": RankEnds(ends=[end])}
    views.say_going(1, Going(step=3, seconds=0.1))
    node.pass_on()
    assert read_rank_ends(store, RUN, FENCE) == {"n1": RankEnds()}


def test_ends_of_a_node_that_cannot_be_read_hide_those_of_no_other(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    ends = RankEnds(ends=[RankEnd(rank=1, pid=7, host="n2.rack", exit_code=3)])
    write_rank_ends(store, RUN, FENCE, "n2.rack", ends)
    for folder in ("rank_ends", "rank_statuses"):
        store.write(f"runs/{RUN}/segments/{FENCE:08d}/{folder}/n1.json", b'{"ends": [{')
    assert read_rank_ends(store, RUN, FENCE) == {"n2.rack": ends}
    account = describe_relayed_ends(store, RUN, FENCE)
    assert account.first is not None and account.first.startswith("Rank 1 (process 7 on n2.rack) left with exit code 3")


def test_of_a_long_log_the_end_is_kept(tmp_path: Path) -> None:
    node = Node(tmp_path, LocalStore(tmp_path / "store"))
    node.log.write_bytes(b"first" + b"." * MOST_LOG_BYTES + b"last")
    node.pass_on()
    (log,) = read_logs(node.store, RUN, FENCE)
    assert log.begins_at + len(log.data) == node.log.stat().st_size and log.data.endswith(b"last")
    assert len(node.store.read(f"runs/{RUN}/segments/{FENCE:08d}/logs/n1.log")) <= MOST_LOG_BYTES


def test_of_the_nodes_that_come_one_is_the_first_for_all(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    one, other = (FirstNode(incarnation="1.0", node=name, addresses=["10.0.0.1"], port=1) for name in ("n1", "n2"))
    assert elect_first_node(store, RUN, FENCE, one) == one
    assert elect_first_node(store, RUN, FENCE, other) == one


def never() -> bool:
    return False


def meeting_of(first: FirstNode, seconds: float = 60, is_stop: Callable[[], bool] = never, ear: int = 1) -> NodeMeeting:
    return NodeMeeting(ClusterConfig(join_seconds=seconds), "run-7", 3, first, ear, is_stop)


def test_nodes_meet_at_an_address_that_answers_and_are_numbered_by_the_first_of_them() -> None:
    first, listening = introduce("1.0", "n1", interface=None)
    told = first.model_copy(update={"addresses": ["198.51.100.1", *first.addresses]})
    found: dict[str, Rendezvous] = {}
    names = ("n3", "n2")

    def join(name: str) -> None:
        found[name] = meeting_of(told, ear=EARS[name]).join(name)

    nodes = [threading.Thread(target=join, args=(name,)) for name in names]
    with listening:
        for node in nodes:
            node.start()
        with socket.create_connection((first.addresses[0], first.port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with socket.create_connection((first.addresses[0], first.port)) as other_segment:
                other_segment.sendall(b'{"name": "run-6", "node": "n9"}\n')
                host = meeting_of(first, ear=EARS["n1"]).host(listening)
        for node in nodes:
            node.join()
        assert host.listening == listening.fileno()
    assert (host.index, found["n2"].index, found["n3"].index) == (0, 1, 2)
    assert {(one.address, one.port, one.num_nodes) for one in (host, *found.values())} == {
        (first.addresses[0], first.port, 3)
    }
    assert found["n2"].listening is None
    for one in (host, *found.values()):
        assert one.segment == "run-7"
        assert one.nodes == {name: Address(host=first.addresses[0], port=port) for name, port in EARS.items()}
        assert list(one.nodes) == ["n1", "n2", "n3"]
    addresses = [address.address for address in psutil.net_if_addrs()[found["n2"].interface]]
    assert first.addresses[0] in addresses


def test_a_first_node_that_does_not_answer_is_named_with_its_addresses() -> None:
    first = FirstNode(incarnation="1.0", node="n1", addresses=["127.0.0.1"], port=1)
    with pytest.raises(TimeoutError, match=r"within 0\.1 s .* n1, did not answer at port 1 of 127\.0\.0\.1.*interface"):
        meeting_of(first, seconds=0.1).join("n2")


def test_a_first_node_says_which_nodes_came() -> None:
    first, listening = introduce("1.0", "n1", interface=None)
    with listening, pytest.raises(TimeoutError, match=r"3 nodes, but within 0\.5 s .* only n1 and n2 came"):
        joining = threading.Thread(target=join_in_vain, args=(first,))
        joining.start()
        try:
            meeting_of(first, seconds=0.5).host(listening)
        finally:
            joining.join()


def join_in_vain(first: FirstNode) -> None:
    with pytest.raises(TimeoutError):
        meeting_of(first, seconds=0.5).join("n2")


def test_nodes_that_are_asked_to_stop_wait_no_longer() -> None:
    first, listening = introduce("1.0", "n1", interface=None)
    asked = threading.Event()
    asked.set()
    with listening:
        with pytest.raises(InterruptedError):
            meeting_of(first, is_stop=asked.is_set).host(listening)
        with pytest.raises(InterruptedError):
            meeting_of(first, is_stop=asked.is_set).join("n2")


def test_an_interface_that_a_node_does_not_have_is_named() -> None:
    with pytest.raises(ValueError, match=r"cluster\.interface = 'ib7': this node has no such interface .* It has "):
        introduce("1.0", "n1", interface="ib7")


def test_local_is_one_machine_and_all_ranks_together_are_at_most_the_leaves() -> None:
    with pytest.raises(ValidationError, match="min_nodes must be at most nodes: min_nodes is 3 and nodes is 2"):
        ClusterConfig(kind="slurm", nodes=2, min_nodes=3)
    with pytest.raises(ValidationError, match=r"nodes is 2\. Set kind to 'slurm' or 'kubernetes', or nodes to 1"):
        ClusterConfig(nodes=2)
    data = DataConfig(text="t", label="l", kind="binary")
    train = TrainConfig(ranks=4, microbatches=8)
    cluster = ClusterConfig(kind="slurm", nodes=2)
    assert RunConfig(run="r", data=data, train=train, cluster=cluster).num_ranks == 8
    with pytest.raises(ValidationError, match=r"cluster.nodes = 3 with train.ranks = 4 each are 12, .* at most 2"):
        RunConfig(run="r", data=data, train=train, cluster=ClusterConfig(kind="slurm", nodes=3))


def test_slurm_may_be_asked_for_some_nodes_or_more() -> None:
    cluster = ClusterConfig(kind="slurm", nodes=8, min_nodes=2)
    assert "--nodes=2-8" in submission(cluster, TrainConfig(), 90, "name")


def test_slurm_is_asked_for_what_the_configuration_says_and_its_own_options_come_last() -> None:
    cluster = ClusterConfig(kind="slurm", nodes=2, partition="gpu", time_limit="8:00:00", sbatch=["--exclusive"])
    options = submission(cluster, TrainConfig(ranks=4, threads=2), 90, "name")
    assert options == [
        "--no-requeue", "--job-name=name", "--nodes=2", "--cpus-per-task=9", "--signal=TERM@90",
        "--partition=gpu", "--time=8:00:00", "--exclusive",
    ]  # fmt: skip


def test_a_job_whose_node_does_not_answer_any_more_is_not_waited_for_until_slurm_gives_the_node_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, state = [], SlurmState("RUNNING", nodes="n[1-2]")
    monkeypatch.setattr(slurm_job, "find_job", lambda name: 7)
    monkeypatch.setattr(slurm_job, "read_state", lambda number, name: state)
    monkeypatch.setattr(nodes, "list_names", lambda listed: ["n1", "n2"])
    monkeypatch.setattr(slurm_job, "send", lambda signal, number: told.append(signal))
    monkeypatch.setattr(slurm_job, "cancel", lambda number: told.append("cancel"))
    monkeypatch.setattr(slurm_job, "ASK_SECONDS", 0.0)
    monkeypatch.setattr(slurm_job, "ENDING_SECONDS", 0.2)
    with SlurmJob("name", LocalStore(tmp_path / "store"), RUN, FENCE, grace_seconds=30) as job:
        job.kill()
        assert job.is_running(0.0) and told == ["KILL", "cancel"]
        with pytest.raises(ClusterUnavailableError, match="did not end within 0 s: RUNNING"):
            job.is_running(0.3)
        state = SlurmState("COMPLETING", nodes="n[1-2]")
        job.is_running(0.0)
        assert not job.is_running(0.0)
    assert job.describe_end() == "Slurm could not end the job within 0 s: a node of n[1-2] does not answer"


@pytest.mark.parametrize("down", ["", "n2\n"])
def test_a_job_for_which_nodes_are_only_down_is_no_wrong_one(down: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(command: Sequence[str], script: str | None = None) -> str:
        if command[0] == "sbatch":
            raise ConfigurationError("allocation failure: Requested node configuration is not available")
        return down

    monkeypatch.setattr(commands, "_call", call)
    with nullcontext() if down else pytest.raises(ConfigurationError, match="node configuration is not available"):
        require_acceptable([])


@pytest.mark.parametrize(
    ("name", "is_waiting", "is_over"),
    [("PENDING", True, False), ("COMPLETING", False, False), ("NODE_FAIL", False, True), ("TIMEOUT", False, True)],
)
def test_a_state_of_slurm_says_whether_a_job_waits_or_is_over(name: str, is_waiting: bool, is_over: bool) -> None:
    state = SlurmState(name, "Resources")
    assert (state.is_waiting, state.is_over, str(state)) == (is_waiting, is_over, f"{name}, Resources")
