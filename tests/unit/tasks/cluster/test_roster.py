"""Which number a node has that comes to a segment under way, and which of several claims counts."""

from pathlib import Path

import pytest

from storage.errors import StoreError
from storage.objects.local_store import LocalStore
from tasks.cluster.roster import LIVES_OF_A_CLAIM, NodePlace, Roster
from training.meeting import Address
from training.views.view import Member, View

RANKS = 2  # of each node


def ear(port: int) -> Address:
    return Address(host="127.0.0.1", port=port)


def view_with(*slots: int) -> View:
    return View(number=1, members=[Member(slot=slot, life=0) for slot in slots], committed_at=0.0)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def roster_of(store: LocalStore) -> Roster:
    """As a node has it that comes later."""
    made = Roster(store, "run", 7, RANKS)
    assert made.find()
    return made


@pytest.fixture
def first(store: LocalStore) -> Roster:
    """Of one of three nodes that met."""
    made = Roster(store, "run", 7, RANKS)
    assert not made.find()
    made.begin({name: ear(port) for port, name in enumerate(("n1", "n2", "n3"), start=1)})
    made.put()
    return made


def claim(roster: Roster, node: str, port: int, newest: View, answering: tuple[int, ...] = ()) -> NodePlace:
    return roster.claim(node, ear(port), lambda: newest, lambda asked: asked.port in answering)


def test_a_node_that_comes_back_has_its_number_though_another_one_is_lost_too(store: LocalStore, first: Roster) -> None:
    place = claim(roster_of(store), "n3", 13, view_with(0, 1))
    assert (place.index, place.claim) == (2, 1)
    assert first.read() == [place] and first.ears == [ear(1), ear(2), ear(13)]
    back = Member(slot=5, life=place.first_life)
    assert first.place_of(back) == place and not first.is_replaced(back)
    assert first.place_of(Member(slot=5, life=1)).ear == ear(3) and first.is_replaced(Member(slot=5, life=1))
    assert first.all_ears() == [ear(1), ear(2), ear(3), ear(13)]


def test_another_node_has_the_number_of_one_that_is_lost_or_else_a_new_one(store: LocalStore, first: Roster) -> None:
    whole, without_n2 = view_with(0, 1, 2, 3, 4, 5), view_with(0, 4)
    assert claim(roster_of(store), "n4", 14, whole).index == 3
    assert claim(roster_of(store), "n5", 15, without_n2, answering=(2, 14)).index == 4  # n2 is on its way out, n4 in
    assert claim(roster_of(store), "n6", 16, without_n2, answering=(14, 15)).index == 1
    assert claim(roster_of(store), "n2", 12, without_n2, answering=(14, 15, 16)).index == 5
    assert claim(roster_of(store), "n4", 24, without_n2).index == 3  # and not one more
    assert [place.node for place in roster_after_reading(first).places] == ["n1", "n6", "n3", "n4", "n5", "n2"]


def roster_after_reading(roster: Roster) -> Roster:
    roster.read()
    return roster


def test_of_two_that_claim_at_once_the_second_one_chooses_anew(store: LocalStore, first: Roster) -> None:
    one, other = roster_of(store), roster_of(store)
    other.read()
    without_n2 = view_with(0, 4)
    rival: list[NodePlace] = []

    def newest() -> View:
        if not rival:  # after the other one has read the claims, and before it puts its own
            rival.append(claim(one, "n4", 14, without_n2))
        return without_n2

    place = other.claim("n5", ear(15), newest, lambda asked: asked.port == 14)
    assert (rival[0].index, rival[0].claim) == (1, 1)
    assert (place.index, place.claim) == (3, 2)


def test_who_began_a_rank_is_read_where_it_is_not_known(store: LocalStore, first: Roster) -> None:
    place = claim(roster_of(store), "n4", 14, view_with(0, 2, 4))
    unknown = Member(slot=6, life=LIVES_OF_A_CLAIM + 2)
    assert not first.is_known(unknown)
    assert first.place_of(unknown) == place and first.is_known(unknown)
    with pytest.raises(StoreError, match=r"claims/000002\.json is missing"):
        first.place_of(Member(slot=6, life=2 * LIVES_OF_A_CLAIM))


@pytest.mark.parametrize("text", ["{", '{"node": "n4", "ear": {"host": "h", "port": 1}, "index": 9, "claim": 1}'])
def test_what_is_no_claim_is_said(store: LocalStore, first: Roster, text: str) -> None:
    store.write("runs/run/segments/00000007/claims/000001.json", text.encode())
    with pytest.raises(StoreError, match=r"claims/000001\.json is no claim"):
        first.read()


def test_who_met_is_put_once(store: LocalStore, first: Roster) -> None:
    first.begin({"other": ear(9)})
    first.put()
    found = roster_of(store)
    assert [place.node for place in found.places] == ["n1", "n2", "n3"] and found.num_met == 3
