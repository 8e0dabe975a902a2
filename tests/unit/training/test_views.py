"""Views: what an agent commits, who is in the next one, and what is told of them afterwards."""

from pathlib import Path

import pytest

from storage.runs.run_records import ViewRecord, ViewTotals
from training.agents import succession
from training.agents.order import AgentOrder
from training.agents.succession import Succession
from training.meeting import Meeting
from training.rank_status import rank_status_file
from training.views.account import (
    MOST_RECORDS,
    all_views,
    describe_change,
    describe_views,
    find_survived,
    seconds_since_change,
)
from training.views.folder import ViewFolder
from training.views.lost_peer import is_lost_peer
from training.views.view import Going, LostMember, Member, View

NUM_RANKS, MOST_DEATHS = 3, 3
SIGKILL, SIGSEGV = 9, 11


def member(slot: int, life: int = 0) -> Member:
    return Member(slot=slot, life=life)


def lost(slot: int, life: int = 0, signal: int = SIGKILL) -> LostMember:
    return LostMember(member=member(slot, life), pid=100 + slot, signal=signal)


def view_of(number: int, *members: Member) -> View:
    return View(number=number, members=list(members), committed_at=0.0)


@pytest.fixture
def folder(tmp_path: Path) -> ViewFolder:
    made = ViewFolder(tmp_path)
    made.create()
    return made


@pytest.fixture
def order(tmp_path: Path) -> AgentOrder:
    return AgentOrder(
        specification=tmp_path / "segment.json",
        first_rank=0,
        local_size=NUM_RANKS,
        world_size=NUM_RANKS,
        meeting=Meeting(file=tmp_path / "ranks"),
        grace_seconds=1.0,
        launched_at=0.0,
    )


@pytest.fixture
def ranks(order: AgentOrder, folder: ViewFolder) -> Succession:
    """Those of an order whose training has begun."""
    made = Succession(order)
    made.take_to_begin()
    folder.say_going(0, Going(step=0, seconds=0.0))
    return made


def test_of_two_views_with_one_number_the_first_is_the_one(folder: ViewFolder) -> None:
    assert folder.find_newest(0) is None
    assert folder.commit(view_of(1, member(0)))
    assert not folder.commit(view_of(1, member(1)))
    assert folder.find(1) == view_of(1, member(0)) == folder.find_newest(0)
    assert folder.commit(view_of(2, member(1)))
    assert folder.find_newest(0) == view_of(2, member(1))
    assert folder.find_newest(2) is None


def test_views_that_a_launch_before_left_under_the_same_fence_count_for_nothing(folder: ViewFolder) -> None:
    folder.commit(view_of(1, member(0)))
    folder.say_ready(member(0, 1))
    folder.create()
    assert not folder.has(1) and not folder.is_ready(member(0, 1))


def test_the_others_go_on_without_one_that_a_signal_ended_and_another_is_begun_in_its_place(
    ranks: Succession, folder: ViewFolder, tmp_path: Path
) -> None:
    rank_status_file(tmp_path, 1).write_text("{}")
    assert ranks.can_do_without(member(1), SIGKILL)
    ranks.go_on_without([lost(1)])
    assert not ranks.is_over
    view = folder.find(1)
    assert view is not None
    assert (view.members, view.lost, view.joined) == ([member(0), member(2)], [lost(1)], [])
    assert not rank_status_file(tmp_path, 1).exists()
    assert ranks.take_to_begin() == [member(1, 1)]
    assert ranks.take_to_begin() == []
    ranks.settle()
    assert not folder.has(2)
    folder.say_ready(member(1, 1))
    ranks.settle()
    view = folder.find(2)
    assert view is not None
    assert (view.members, view.joined) == ([member(0), member(1, 1), member(2)], [member(1, 1)])
    assert not ranks.is_under_way


def test_nobody_goes_on_before_training_has_begun_nor_without_one_that_failed(
    order: AgentOrder, tmp_path: Path
) -> None:
    ranks = Succession(order)
    assert not ranks.can_do_without(member(1), SIGKILL)
    ViewFolder(tmp_path).say_going(0, Going(step=0, seconds=0.0))
    assert ranks.can_do_without(member(1), SIGKILL)
    assert not ranks.can_do_without(member(1), None)


@pytest.mark.parametrize("change", [{"local_size": 1, "world_size": 1}, {"world_size": 2 * NUM_RANKS}])
def test_of_one_rank_and_of_nodes_that_made_no_folder_for_them_there_is_one_view(
    order: AgentOrder, change: dict[str, int], tmp_path: Path
) -> None:
    ranks = Succession(order.model_copy(update=change))
    assert not ViewFolder(tmp_path).is_there
    assert not ranks.can_do_without(member(0), SIGKILL)
    ranks.settle()
    assert not ranks.is_over  # they train on to their end


def test_when_the_ranks_leave_nobody_is_taken_in_any_more(ranks: Succession, folder: ViewFolder) -> None:
    ranks.go_on_without([lost(1)])
    ranks.take_to_begin()
    assert ranks.withdraw() == {member(1, 1)}
    folder.say_ready(member(1, 1))
    ranks.settle()
    assert not folder.has(2)
    assert ranks.withdraw() == set()


def test_who_waits_for_one_that_is_not_to_join_any_more_goes_on_without_it(
    ranks: Succession, folder: ViewFolder
) -> None:
    ranks.go_on_without([lost(1)])
    ranks.take_to_begin()
    folder.say_ready(member(1, 1))
    ranks.settle()
    assert ranks.withdraw() == {member(1, 1)}
    view = folder.find(3)
    assert view is not None and view.members == [member(0), member(2)]


def test_one_that_trains_with_the_others_leaves_with_them(ranks: Succession, folder: ViewFolder) -> None:
    ranks.go_on_without([lost(1)])
    ranks.take_to_begin()
    folder.say_ready(member(1, 1))
    ranks.settle()
    folder.say_going(2, Going(step=4, seconds=0.1))
    assert ranks.withdraw() == set()
    assert not folder.has(3)


def test_where_all_have_died_nobody_goes_on(ranks: Succession, folder: ViewFolder) -> None:
    ranks.go_on_without([lost(0), lost(1)])
    assert folder.has(1) and not ranks.is_over
    ranks.go_on_without([lost(2)])
    assert ranks.is_over
    assert not folder.has(2)


def test_one_that_ends_before_it_joined_is_begun_again_and_the_others_hear_nothing_of_it(
    ranks: Succession, folder: ViewFolder
) -> None:
    ranks.go_on_without([lost(1)])
    ranks.take_to_begin()
    assert ranks.can_do_without(member(1, 1), None)
    assert not ranks.has_been_in(member(1, 1))
    ranks.go_on_without([lost(1, 1, signal=0)])
    assert not folder.has(2) and not ranks.is_over
    assert ranks.take_to_begin() == [member(1, 2)]


def test_who_dies_three_times_within_ten_minutes_stays_out(
    ranks: Succession, folder: ViewFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    for life in range(MOST_DEATHS):
        ranks.go_on_without([lost(1, life)])
        if life < MOST_DEATHS - 1:
            assert ranks.take_to_begin() == [member(1, life + 1)]
            folder.say_ready(member(1, life + 1))
            ranks.settle()
    assert ranks.take_to_begin() == []
    assert "Rank 1 died 3 times within 10 minutes, and is not begun again" in capsys.readouterr().out
    assert folder.find_out() == [1]
    ranks.go_on_without([lost(2)])
    assert ranks.take_to_begin() == [member(2, 1)] and not ranks.is_over


def test_who_has_been_in_many_views_is_replaced_and_that_is_no_death_of_its_own(
    ranks: Succession, folder: ViewFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(succession, "MOST_VIEWS", 2)
    assert ranks.find_worn() is None
    ranks.go_on_without([lost(2)])
    ranks.take_to_begin()
    assert ranks.find_worn() is None  # while another one is missing
    folder.say_ready(member(2, 1))
    ranks.settle()
    worn = ranks.find_worn()
    assert worn == member(0)
    for _ in range(MOST_DEATHS):
        ranks.go_on_without([lost(0, worn.life)])
        (successor,) = ranks.take_to_begin()
        assert successor == member(0, worn.life + 1)
        folder.say_ready(successor)
        ranks.settle()
        monkeypatch.setattr(succession, "MOST_VIEWS", 0)
        worn = ranks.find_worn()
        assert worn == successor
        monkeypatch.setattr(succession, "MOST_VIEWS", 2)


def test_told_is_of_views_in_which_training_went_on_and_of_no_other(folder: ViewFolder) -> None:
    folder.say_going(0, Going(step=5, seconds=0.0))
    assert (describe_views(all_views(folder)), find_survived(all_views(folder))) == (([], None), set())
    folder.commit(view_of(1, member(0), member(2)).model_copy(update={"lost": [lost(1)]}))
    folder.commit(view_of(2, member(0)).model_copy(update={"lost": [lost(2, signal=SIGSEGV)]}))
    folder.commit(view_of(3, member(0), member(1, 1)).model_copy(update={"joined": [member(1, 1)]}))
    folder.commit(view_of(4, member(1, 1)).model_copy(update={"lost": [lost(0)]}))
    folder.say_going(2, Going(step=7, seconds=0.25))
    folder.say_going(3, Going(step=9, seconds=0.5))
    seen = all_views(folder)
    assert find_survived(seen) == {(1, 101), (2, 102)}
    assert describe_views(seen) == (
        [
            ViewRecord(step=7, lost=[1, 2], causes=["SIGKILL", "SIGSEGV"], joined=[], num_ranks=1, seconds=0.25),
            ViewRecord(step=9, joined=[1], num_ranks=2, seconds=0.5),
        ],
        ViewTotals(num_views=2, num_lost=2, num_joined=1, longest_seconds=0.25),
    )


@pytest.mark.parametrize("num_views", [0, 1, 2 * MOST_RECORDS, 2 * MOST_RECORDS + 1, 3 * MOST_RECORDS])
def test_of_many_views_the_first_and_the_last_are_told_of_and_all_are_counted(
    num_views: int, folder: ViewFolder
) -> None:
    steps = list(range(1, num_views + 1))
    for step in steps:
        folder.commit(view_of(step, member(0)).model_copy(update={"lost": [lost(1)]}))
        folder.say_going(step, Going(step=step, seconds=step / 10))
    records, totals = describe_views(all_views(folder))
    found = [record.step for record in records]
    assert found == (steps if num_views <= 2 * MOST_RECORDS else steps[:MOST_RECORDS] + steps[-MOST_RECORDS:])
    if num_views == 0:
        assert totals is None
    else:
        assert totals == ViewTotals(
            num_views=num_views, num_lost=num_views, num_joined=0, longest_seconds=num_views / 10
        )


def test_who_is_not_begun_again_is_told_of_where_its_last_death_is(folder: ViewFolder) -> None:
    folder.say_out(2)
    folder.say_out(1)
    folder.say_out(1)
    view = view_of(1, member(0)).model_copy(update={"lost": [lost(1)]})
    assert describe_change([view], 7, 0.1, folder.find_out()) == (
        "Rank 1 (SIGKILL) died: 1 rank train on from step 7, 0.10 s later. Rank 1 died so often in a short time that "
        "none is begun in its place any more in this segment."
    )
    folder.commit(view)
    folder.say_going(1, Going(step=7, seconds=0.1))
    totals = describe_views(all_views(folder), folder.find_out()).totals
    assert totals is not None and totals.stay_out == [1, 2]
    folder.create()
    assert folder.find_out() == []


def test_a_change_that_takes_several_views_counts_from_the_first_death_that_led_to_it() -> None:
    first = View(number=1, members=[member(0), member(2)], lost=[lost(1)], committed_at=10.0)
    second = View(number=2, members=[member(0)], lost=[lost(2)], committed_at=11.0)
    joined = View(number=3, members=[member(0), member(1, 1)], joined=[member(1, 1)], committed_at=20.0)
    assert seconds_since_change([first, second], now=11.5) == 1.5
    assert seconds_since_change([joined], now=20.25) == 0.25
    words = describe_change([first, second], step=1234, seconds=1.5)
    assert words == "Rank 1 (SIGKILL) and rank 2 (SIGKILL) died: 1 rank train on from step 1,234, 1.50 s later."


def test_a_lost_peer_is_told_from_other_errors() -> None:
    assert is_lost_peer(RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"))
    assert not is_lost_peer(RuntimeError("Told to fail"))
    assert not is_lost_peer(OSError("Connection reset by peer"))
