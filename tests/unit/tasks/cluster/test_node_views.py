"""How nodes decide together which ranks go on: each is a thread here, with its folder, and the store is one."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from storage.errors import StoreUnavailableError
from storage.objects.local_store import LocalStore
from storage.runs.segments import OutcomeRecord, write_outcome
from tasks.cluster.node_views import NodeViews, name_segment
from tasks.cluster.orders import NodeEnd, read_node_ends, write_node_end
from tasks.cluster.roll_call import RollCall
from tasks.cluster.roster import NodePlace, Roster
from tasks.configuration.cluster import ClusterConfig
from tests.helpers.commands import wait_until
from tests.helpers.finished_runs import dataset_of
from tests.helpers.training import make_spec
from training.agents.ends import RankEnd, RankEnds, write_ends
from training.meeting import Address
from training.spec import SegmentSpec
from training.views.decisions import Decisions
from training.views.ear import Ear, Question, ask
from training.views.folder import ViewFolder
from training.views.stored import StoredViews
from training.views.view import Going, LostMember, Member, View, Wanted, first_view

RUN, FENCE = "run", 7
HERE = "127.0.0.1"
SILENT_SECONDS = 60.0  # a busy machine is not silent
RANKS = 2  # of each node


def member(slot: int, life: int = 0) -> Member:
    return Member(slot=slot, life=life)


def lost(*slots: int) -> Wanted:
    return Wanted(lost=[LostMember(member=member(slot), pid=100 + slot, signal=9) for slot in slots])


class CountingStore(LocalStore):
    """Counts what is asked of it; takes and gives nothing while it `is_away`, and once not what is `refused_once`."""

    num_requests = 0
    is_away = False
    refused_once: str | None = None

    def read(self, key: str) -> bytes:
        self._count()
        return super().read(key)

    def write_if_absent(self, key: str, data: bytes) -> None:
        self._count()
        if self.refused_once is not None and self.refused_once in key:
            self.refused_once = None
            raise StoreUnavailableError("no answer")
        super().write_if_absent(key, data)

    def _count(self) -> None:
        self.num_requests += 1
        if self.is_away:
            raise StoreUnavailableError("no answer")


class OneNode:
    """A node that takes part, and what its agent and its ranks would do."""

    def __init__(self, store: LocalStore, folder: Path, name: str, cluster: ClusterConfig) -> None:
        data = dataset_of(["a", "b"], "multiclass", "label")
        made = make_spec(store, data, folder / name, FENCE, ranks=RANKS)
        self.spec: SegmentSpec = made.model_copy(update={"run": RUN, "store_seconds": 60.0})
        self.name, self.folder = name, ViewFolder(folder / name)
        self.views = NodeViews(store, self.spec, "job", cluster)
        self.address = Address(host=HERE, port=self.views.port)

    def want(self, wanted: Wanted) -> None:
        """As the agent does."""
        self.folder.want(wanted)
        self.look(0)

    def look(self, number: int) -> bool:
        """As a rank does; whether it may yet be decided."""
        return ask(self.address, Question(segment=name_segment(self.spec), asks="look", view=number)).is_deciding

    def waits_for(self, number: int) -> View:
        assert wait_until(lambda: self.folder.has(number))
        found = self.folder.find(number)
        assert found is not None
        return found


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    return CountingStore(tmp_path / "store")


@pytest.fixture
def nodes(request: pytest.FixtureRequest, store: CountingStore, tmp_path: Path) -> Iterator[list[OneNode]]:
    """Three of them, whose ranks train."""
    own = getattr(request, "param", {"silent_seconds": SILENT_SECONDS, "min_nodes": 2})
    cluster = ClusterConfig(kind="slurm", nodes=3, **own)
    made = [OneNode(store, tmp_path, name, cluster) for name in ("n1", "n2", "n3")]
    addresses = {node.name: node.address for node in made}
    with ExitStack() as stack:
        for index, node in enumerate(made):
            stack.enter_context(closing(node.views))
            roster = Roster(store, RUN, FENCE, RANKS)
            roster.begin(addresses)
            node.views.begin(node.spec, roster, roster.places[index])
            node.folder.say_going(0, Going(step=0, seconds=0.0))
        yield made


def test_what_one_agent_wants_all_nodes_have_and_their_ranks_meet_where_its_first_member_is(
    nodes: list[OneNode], store: CountingStore
) -> None:
    nodes[1].want(lost(2))
    stored = StoredViews(store, RUN, FENCE)
    for node in nodes:
        view = node.waits_for(1)
        assert [one.slot for one in view.members] == [0, 1, 3, 4, 5]
        assert [one.pid for one in view.lost] == [102]
        assert view.meeting == nodes[0].address
    assert stored.find(1) is not None and stored.find(2) is None
    nodes[0].folder.say_port(1, 4711)
    question = Question(segment=name_segment(nodes[2].spec), asks="meeting", view=1)
    assert ask(nodes[0].address, question).port == 4711
    assert ask(nodes[2].address, question).port is None


def test_of_two_agents_that_want_a_view_at_once_one_is_first_and_the_other_one_goes_on_from_there(
    nodes: list[OneNode], store: CountingStore
) -> None:
    nodes[1].folder.want(lost(3))
    nodes[2].folder.want(lost(4))
    nodes[1].look(0)
    nodes[2].look(0)
    for node in nodes:
        first, second = node.waits_for(1), node.waits_for(2)
        assert [one.slot for one in second.members] == [0, 1, 2, 5]
        assert sorted(one.member.slot for view in (first, second) for one in view.lost) == [3, 4]
    assert not nodes[0].folder.has(3)


def test_who_reads_that_another_one_was_quicker_does_not_undo_what_that_one_did(store: CountingStore) -> None:
    stored = StoredViews(store, RUN, FENCE)
    one, other = Decisions(stored, first_view(4, 0.0)), Decisions(stored, first_view(4, 0.0))
    assert [view.number for view in one.settle(lost(1))[1]] == [1]
    joining = Wanted(joining=[member(1, 1)])
    assert [view.number for view in one.settle(joining)[1]] == [2]
    new, ours = other.settle(lost(1, 2))  # it has seen the one end, too, and knows nothing of its successor
    assert ([view.number for view in new], [view.number for view in ours]) == ([1, 2, 3], [3])
    assert other.newest.members == [member(0), member(1, 1), member(3)]
    new, ours = one.settle(joining)
    assert ([view.number for view in new], ours) == ([3], [])  # who was in a view is not taken in again
    with_successor_gone = Wanted(lost=[LostMember(member=member(1, 1), pid=1, signal=9)])
    other.settle(with_successor_gone)
    assert one.settle(joining)[1] == [] and one.newest.members == [member(0), member(3)]


def test_a_node_whose_port_is_closed_is_left_out_at_once_and_the_supervisor_is_told(
    nodes: list[OneNode], store: CountingStore
) -> None:
    write_ends(nodes[2].spec.scratch_folder, RankEnds(ends=[RankEnd(rank=4, pid=1, host="h", signal=9)]))
    nodes[2].views.close()
    began = time.monotonic()
    nodes[0].look(1)
    view = nodes[1].waits_for(1)
    assert [one.slot for one in view.members] == [0, 1, 2, 3]
    assert all(one.is_silent for one in view.lost) and [one.member.slot for one in view.lost] == [4, 5]
    assert time.monotonic() - began < 60  # and not for as long as a silent one has
    assert wait_until(lambda: ends_of(store) == [("n3", 0, "lost")])
    assert not any(node.views.is_left_out or node.views.is_left_alone for node in nodes[:2])


@pytest.mark.parametrize(
    "nodes", [{"silent_seconds": SILENT_SECONDS}, {"min_nodes": 1}], indirect=True, ids=["too few", "not asked for"]
)
def test_where_nobody_is_to_go_on_without_a_node_ranks_are_told_at_once(nodes: list[OneNode]) -> None:
    nodes[2].views.close()
    question = Question(segment=name_segment(nodes[0].spec), asks="look", view=1)
    assert wait_until(lambda: ask(nodes[0].address, question).is_hopeless)
    assert not nodes[0].folder.has(1)
    assert not ask(nodes[1].address, question.model_copy(update={"asks": "here"})).is_hopeless


def test_a_node_that_left_in_good_order_is_not_lost(nodes: list[OneNode]) -> None:
    write_ends(nodes[2].spec.scratch_folder, RankEnds(ends=[RankEnd(rank=4, pid=1, host="h", exit_code=0)]))
    nodes[2].views.close()
    nodes[0].look(1)
    time.sleep(1)  # in which it asks all, several times
    assert not nodes[0].folder.has(1)


def test_where_a_rank_has_said_how_the_segment_ended_nobody_goes_on_without_its_node(
    nodes: list[OneNode], store: CountingStore
) -> None:
    record = OutcomeRecord(outcome="failed", cause="", first_step=0, last_step=1, world_size=6, seconds=1, phases={})
    write_outcome(store, RUN, FENCE, record)
    nodes[2].views.close()
    nodes[0].look(1)
    assert wait_until(lambda: nodes[0].views.is_left_alone)
    assert not nodes[0].views.is_left_out and not nodes[0].folder.has(1)


def test_a_node_that_others_went_on_without_is_to_leave_when_it_reads_that(
    nodes: list[OneNode], store: CountingStore
) -> None:
    gone = [LostMember(member=member(slot), pid=0, signal=0, is_silent=True) for slot in (2, 3)]
    members = [member(slot) for slot in (0, 1, 4, 5)]
    StoredViews(store, RUN, FENCE).commit(View(number=1, members=members, lost=gone, committed_at=0.0))
    nodes[1].look(1)
    assert wait_until(lambda: nodes[1].views.is_left_out)
    nodes[0].look(1)
    nodes[0].waits_for(1)
    assert not nodes[0].views.is_left_out and not nodes[0].views.is_left_alone


def test_while_nobody_is_missing_nothing_is_asked_of_the_store(nodes: list[OneNode], store: CountingStore) -> None:
    time.sleep(2.5)  # in which nodes ask each other
    assert store.num_requests == 0
    assert not nodes[0].folder.has(1)


def test_a_store_that_is_away_is_asked_again_and_ranks_are_told_to_wait(
    nodes: list[OneNode], store: CountingStore
) -> None:
    store.is_away = True
    nodes[1].want(lost(2))
    assert wait_until(lambda: nodes[1].look(1))
    store.is_away = False
    assert [one.slot for one in nodes[0].waits_for(1).members] == [0, 1, 3, 4, 5]
    assert wait_until(lambda: not nodes[1].look(1))


def test_that_training_goes_on_in_a_view_the_store_learns_from_the_node_of_its_first_member(
    nodes: list[OneNode], store: CountingStore
) -> None:
    nodes[0].want(lost(0, 1))
    for node in nodes[1:]:
        node.waits_for(1)
    nodes[1].folder.say_going(1, Going(step=5, seconds=0.25))
    nodes[2].folder.say_going(1, Going(step=5, seconds=0.5))
    stored = StoredViews(store, RUN, FENCE)
    assert wait_until(lambda: stored.find_going(1) is not None)
    assert stored.find_going(1) == Going(step=5, seconds=0.25)


@pytest.mark.parametrize(("num_silent", "factor"), [(1, 1), (2, 5), (3, 5)])
def test_who_is_silent_is_lost_after_a_while_and_after_a_longer_one_where_it_is_not_the_smaller_part(
    num_silent: int, factor: int
) -> None:
    now = 100.0
    with ExitStack() as stack:
        ears = [stack.enter_context(closing(Ear("run-7", lambda question: pytest.fail()))) for _ in range(4)]
        roll_call = RollCall("run-7", [Address(host=HERE, port=ear.port) for ear in ears], 2.0, lambda: now)
    assert roll_call.find_lost(range(4)) == set()
    silent = set(range(4 - num_silent, 4))
    roll_call._silent_since = dict.fromkeys(silent, now)
    for seconds, expected in ((2.0 * factor - 0.1, set()), (2.0 * factor, silent)):
        now = 100.0 + seconds
        assert roll_call.find_lost(range(4)) == expected
        assert roll_call.is_undecided(range(4)) == (not expected)
        assert not any(roll_call.answers(node) for node in silent) and roll_call.answers(0)
    roll_call.ask([3])  # its port is closed by now
    assert 3 in roll_call.find_lost(range(4))
    roll_call.note_left(3)
    assert 3 not in roll_call.find_lost(range(4)) and roll_call.answers(3)


def joining(store: LocalStore, folder: Path, name: str, cluster: ClusterConfig) -> tuple[OneNode, NodePlace]:
    """A node that comes to the segment of the three, and its place."""
    node = OneNode(store, folder, name, cluster)
    roster = Roster(store, RUN, FENCE, RANKS)
    assert roster.find()
    newest = Decisions(StoredViews(store, RUN, FENCE), first_view(3 * RANKS, 0.0))
    newest.read()
    place = roster.claim(name, node.address, lambda: newest.newest, lambda ear: False)
    scratch = Path(f"{node.spec.scratch}~{place.claim}")
    scratch.mkdir()
    node.folder = ViewFolder(scratch)
    node.views.begin(node.spec.model_copy(update={"scratch": str(scratch)}), roster, place)
    return node, place


def ends_of(store: LocalStore) -> list[tuple[str, int, str]]:
    return [(end.node, end.claim, end.how) for end in read_node_ends(store, RUN, FENCE)]


def test_of_a_node_that_is_lost_before_it_says_that_it_joined_that_counts(store: CountingStore) -> None:
    for claim, how in ((0, "lost"), (1, "lost"), (1, "joined")):
        end = NodeEnd.model_validate({"job": "job", "node": "n3", "claim": claim, "how": how})
        write_node_end(store, RUN, FENCE, end)
    assert ends_of(store) == [("n3", 1, "lost")]


@pytest.mark.parametrize("is_missed", [True, False], ids=["after it was missed", "before it is missed"])
def test_a_node_that_is_started_again_is_taken_in_and_its_earlier_process_leaves(
    nodes: list[OneNode], store: CountingStore, tmp_path: Path, is_missed: bool
) -> None:
    met = Roster(store, RUN, FENCE, RANKS)
    met.begin({node.name: node.address for node in nodes})
    met.put()
    if is_missed:
        nodes[2].views.close()
        nodes[0].look(1)
        nodes[1].waits_for(1)
    cluster = ClusterConfig(kind="slurm", nodes=3, silent_seconds=SILENT_SECONDS, min_nodes=2)
    again, place = joining(store, tmp_path, "n3", cluster)
    with closing(again.views):
        first = nodes[0].waits_for(1)
        assert [one.slot for one in first.members] == [0, 1, 2, 3]
        assert {one.node for one in first.lost} == {"n3"} and all(one.is_silent for one in first.lost)
        assert is_missed or wait_until(lambda: nodes[2].views.is_replaced)
        assert nodes[2].views.is_replaced != is_missed
        assert not again.views.is_left_out and not again.views.has_joined
        new = [member(slot, place.first_life) for slot in (4, 5)]
        store.refused_once = "/ends/n3"  # that it joined is said again
        again.want(Wanted(joining=new))
        for node in (nodes[0], nodes[1], again):
            view = node.waits_for(2)
            assert view.members == [*first.members, *new] and view.node == "n3"
        assert wait_until(lambda: again.views.has_joined)
        assert wait_until(lambda: ends_of(store) == [("n3", place.claim, "joined")])
        # The node that found it lost may be slow to say so, and says it of the earlier process.
        write_node_end(store, RUN, FENCE, NodeEnd(job="job", node="n3", how="lost"))
        assert ends_of(store) == [("n3", place.claim, "joined")]
        assert store.refused_once is None
        # From here on it is asked, and missed, at its new address.
        again.views.close()
        nodes[0].look(3)
        assert [one.slot for one in nodes[1].waits_for(3).members] == [0, 1, 2, 3]


def test_a_node_that_others_went_on_without_commits_nothing_more(nodes: list[OneNode], store: CountingStore) -> None:
    gone = [LostMember(member=member(slot), pid=0, signal=0, is_silent=True) for slot in (2, 3)]
    members = [member(slot) for slot in (0, 1, 4, 5)]
    stored = StoredViews(store, RUN, FENCE)
    stored.commit(View(number=1, members=members, lost=gone, committed_at=0.0))
    nodes[1].look(1)
    assert wait_until(lambda: nodes[1].views.is_left_out)
    nodes[1].want(lost(0))
    nodes[1].views.close()
    assert stored.find(2) is None


def test_of_a_node_that_was_asked_to_leave_nobody_is_taken_in_any_more(nodes: list[OneNode]) -> None:
    leaving, *others = nodes
    leaving.want(lost(0))
    leaving.waits_for(1)
    leaving.views.leave()
    # As its agent does, in place of the one that died, until its ranks have left.
    leaving.want(lost(0).model_copy(update={"joining": [member(0, 1)]}))
    for node in others:
        view = node.waits_for(2)
        assert [one.slot for one in view.members] == [2, 3, 4, 5]
        assert [(one.member, one.is_leaving) for one in view.lost] == [(member(1), True)]
    assert wait_until(lambda: leaving.views.has_left)
    leaving.look(3)
    leaving.views.close()
    assert leaving.views.has_left and not others[0].folder.has(3)
