"""Views where ranks are on several nodes: what one node's agent wants and takes in, what is stored, what is asked."""

import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from storage.objects.local_store import LocalStore
from training.agents import succession
from training.agents.order import AgentOrder
from training.agents.succession import Succession
from training.meeting import Address, Meeting
from training.views.account import all_views
from training.views.ear import Answer, Ear, Question, ask, tell
from training.views.folder import ViewFolder
from training.views.stored import MirroredViews, StoredViews
from training.views.view import Going, LostMember, Member, View, Wanted, next_view
from training.world import World

RANKS, SIGKILL = 2, 9  # of each of two nodes
HERE = "127.0.0.1"


def member(slot: int, life: int = 0) -> Member:
    return Member(slot=slot, life=life)


def lost(slot: int, life: int = 0) -> LostMember:
    return LostMember(member=member(slot, life), pid=100 + slot, signal=SIGKILL)


def view_of(number: int, *members: Member, gone: tuple[LostMember, ...] = ()) -> View:
    return View(number=number, members=list(members), lost=list(gone), committed_at=0.0)


@pytest.fixture
def folder(tmp_path: Path) -> ViewFolder:
    """Made by the node's own process."""
    made = ViewFolder(tmp_path)
    made.create()
    return made


@pytest.fixture
def agent(folder: ViewFolder, tmp_path: Path) -> Succession:
    """That of the second node, whose ranks train."""
    order = AgentOrder(
        specification=tmp_path / "segment.json",
        first_rank=RANKS,
        local_size=RANKS,
        world_size=2 * RANKS,
        meeting=Meeting(address=HERE, port=1),
        grace_seconds=1.0,
        launched_at=0.0,
    )
    made = Succession(order)
    assert made.take_to_begin() == [member(2), member(3)]
    folder.say_going(0, Going(step=0, seconds=0.0))
    return made


def test_an_agent_of_several_notes_what_it_wants_and_commits_nothing(agent: Succession, folder: ViewFolder) -> None:
    agent.go_on_without([lost(3)])
    assert folder.find_wanted().lost == [lost(3)]
    assert not folder.has(1) and agent.is_under_way and not agent.is_over
    assert agent.take_to_begin() == [member(3, 1)]
    folder.commit(view_of(1, member(0), member(1), member(2), gone=(lost(3),)))
    agent.settle()
    assert folder.find_wanted().lost == []
    folder.say_ready(member(3, 1))
    agent.settle()
    assert folder.find_wanted().joining == [member(3, 1)]
    folder.commit(view_of(2, member(0), member(1), member(2), member(3, 1)))
    agent.settle()
    assert folder.find_wanted().joining == [] and not agent.is_under_way
    assert agent.has_been_in(member(3, 1))


def test_a_node_whose_ranks_have_all_died_has_successors_as_long_as_others_are_left(
    agent: Succession, folder: ViewFolder
) -> None:
    agent.go_on_without([lost(2), lost(3)])
    assert not agent.is_over
    assert agent.take_to_begin() == [member(2, 1), member(3, 1)]
    folder.commit(view_of(1, member(2), member(3), gone=(lost(0), lost(1))))  # of a node that was quicker
    agent.settle()
    assert agent.is_over


def test_a_successor_that_was_taken_in_unseen_and_died_is_wanted_out(agent: Succession, folder: ViewFolder) -> None:
    agent.go_on_without([lost(3)])
    agent.take_to_begin()
    folder.commit(view_of(1, member(0), member(1), member(2), gone=(lost(3),)))
    folder.say_ready(member(3, 1))
    agent.settle()
    agent.go_on_without([lost(3, 1)])  # before it read that the view with it was committed
    wanted = folder.find_wanted()
    assert wanted.joining == [] and lost(3, 1) in wanted.lost
    joined = view_of(2, member(0), member(1), member(2), member(3, 1))
    view = next_view(joined, set(joined.members), wanted, lambda first: None)
    assert view is not None and view.members == [member(0), member(1), member(2)]


def test_when_its_ranks_leave_it_withdraws_its_own_successors_and_no_other_node_s(
    agent: Succession, folder: ViewFolder
) -> None:
    agent.go_on_without([lost(3)])
    agent.take_to_begin()
    folder.commit(view_of(1, member(1), member(2), gone=(lost(0), lost(3))))
    joined = View(
        number=2,
        members=[member(0, 1), member(1), member(2), member(3, 1)],
        joined=[member(0, 1), member(3, 1)],
        committed_at=0.0,
    )
    folder.commit(joined)
    agent.settle()
    assert agent.withdraw() == {member(3, 1)}
    assert folder.find_wanted().withdrawn == [member(3, 1)]


def test_of_worn_ranks_on_several_nodes_the_first_one_of_all_is_replaced_first(
    agent: Succession, folder: ViewFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(succession, "MOST_VIEWS", 0)
    assert agent.find_worn() is None  # it is the other node's
    folder.commit(view_of(1, member(1), member(2), member(3), gone=(lost(0),)))
    folder.commit(view_of(2, member(0, 1), member(1), member(2), member(3)))
    agent.settle()
    monkeypatch.setattr(succession, "MOST_VIEWS", 1)
    assert agent.find_worn() is None
    folder.commit(view_of(3, member(0, 1), member(2), member(3), gone=(lost(1),)))
    folder.commit(view_of(4, member(0, 1), member(1, 1), member(2), member(3)))
    agent.settle()
    monkeypatch.setattr(succession, "MOST_VIEWS", 3)
    assert agent.find_worn() == member(2)


def test_of_a_node_that_came_later_all_ranks_join_the_others(folder: ViewFolder, tmp_path: Path) -> None:
    order = AgentOrder(
        specification=tmp_path / "segment.json",
        first_rank=2 * RANKS,
        first_life=1_000_000,
        local_size=RANKS,
        world_size=2 * RANKS,
        meeting=Meeting(address=HERE, port=1),
        grace_seconds=1.0,
        launched_at=0.0,
    )
    agent = Succession(order)
    own = [member(slot, 1_000_000) for slot in (4, 5)]
    assert agent.take_to_begin() == own and agent.is_under_way
    folder.say_going(0, Going(step=0, seconds=0.0))
    for one in own:
        assert agent.can_do_without(one, None)  # what becomes of it is not the others' concern yet
        assert not agent.has_been_in(one)
        folder.say_ready(one)
    agent.settle()
    assert folder.find_wanted().joining == own
    folder.commit(view_of(1, *(member(slot) for slot in range(4)), *own))
    agent.settle()
    assert not agent.is_under_way and agent.has_been_in(own[0])
    agent.go_on_without([lost(5, 1_000_000)])
    assert agent.take_to_begin() == [member(5, 1_000_001)]
    assert order.world_of(1, 1_000_000).rank == -1 and order.world_of(1, 1_000_000).slot == 5


def test_what_is_stored_is_how_old_a_view_was_and_each_reader_counts_by_its_own_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 1000.0
    monkeypatch.setattr("training.views.stored.time.clock_gettime", lambda which: clock)
    stored = StoredViews(LocalStore(tmp_path / "store"), "run", 7)
    assert stored.commit(view_of(1, member(0)).model_copy(update={"committed_at": 998.5}))
    assert not stored.commit(view_of(1, member(1)))
    clock = 50.0
    folder = ViewFolder(tmp_path)
    folder.create()
    mirrored = MirroredViews(stored, folder)
    view = mirrored.find(1)
    assert view is not None and (view.members, view.committed_at) == ([member(0)], 48.5)
    clock = 60.0
    assert mirrored.find(1) == view == folder.find(1)
    stored.say_going(1, Going(step=3, seconds=0.5))
    stored.say_going(1, Going(step=4, seconds=0.75))
    assert [going for _, going in all_views(stored)] == [Going(step=3, seconds=0.5)]


def test_a_rank_s_place_on_its_machine_follows_from_who_is_there(tmp_path: Path) -> None:
    world = World(3, 6, 1, 2)  # the second one of the second node
    assert (world.ranks_here, world.is_first) == (range(2, 4), False)
    world.enter([1, 3, 4, 5], None, view=1)
    assert (world.rank, world.size, world.local_rank, world.local_size) == (1, 4, 0, 1)
    assert (world.ranks_here, world.full_size, world.view) == (range(1, 2), 6, 1)
    world.enter([2, 3], None, view=2)
    assert (world.ranks_here, world.is_first, world.local_rank) == (range(2), False, 1)
    assert world.label.startswith("rank 3 on ")  # the other machines may come back


@pytest.fixture
def ear() -> Iterator[Ear]:
    with closing(Ear("run-7", lambda question: Answer(port=question.view))) as made:
        yield made


def test_only_who_asks_about_the_segment_gets_an_answer(ear: Ear) -> None:
    address = Address(host=HERE, port=ear.port)
    assert ask(address, Question(segment="run-7", asks="meeting", view=5)).port == 5
    assert tell(Meeting(ear=address, segment="run-7"), "look", 6) == Answer(port=6)
    assert tell(Meeting(file=Path("ranks")), "look", 6) is None
    with pytest.raises(OSError, match=r"said nothing that is an answer"):
        ask(address, Question(segment="run-6", asks="here"))
    for words in (b"GET / HTTP/1.1\r\n\r\n", b"x" * 1024, b'{"segment": "run-7", "asks": "everything"}\n'):
        with socket.create_connection((HERE, ear.port), 10) as stranger:
            stranger.sendall(words)
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(10) == b""
    assert ask(address, Question(segment="run-7", asks="here", view=1)).port == 1


def test_a_port_that_is_closed_refuses_and_one_that_says_nothing_is_silent(ear: Ear) -> None:
    address = Address(host=HERE, port=ear.port)
    ear.close()
    with pytest.raises(ConnectionRefusedError):
        ask(address, Question(segment="run-7", asks="here"))
    with socket.create_server((HERE, 0)) as frozen:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            ask(Address(host=HERE, port=frozen.getsockname()[1]), Question(segment="run-7", asks="here"), 0.2)
        assert time.monotonic() - began >= 0.2


def test_what_is_wanted_in_vain_makes_no_view() -> None:
    newest = view_of(3, member(0), member(1))
    were = {member(0), member(1), member(2)}
    for wanted in (Wanted(), Wanted(lost=[lost(2)]), Wanted(joining=[member(2)]), Wanted(lost=[lost(0), lost(1)])):
        assert next_view(newest, were, wanted, lambda first: None) is None
