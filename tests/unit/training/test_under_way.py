"""What becomes of a save under way when ranks die: who writes which share of it, and when it is over or lost."""

from collections.abc import Sequence
from itertools import combinations

import pytest

from training.checkpointing.under_way import Fate, Phase, SaveStanding, deal_shares, decide_fate
from training.world import World

STEP = 6
JOINED = SaveStanding()


def saving(rank: int, size: int = 4, phase: Phase = Phase.FILES, holds_second: bool = True) -> SaveStanding:
    second_share = (rank + 1) % size if holds_second else -1
    return SaveStanding(phase, STEP, rank, size, second_share, is_beyond_repair=1)


def fate_of(*standings: SaveStanding, without_state: Sequence[int] = ()) -> Fate:
    return decide_fate(standings, [rank not in without_state for rank in range(len(standings))])


@pytest.mark.parametrize("size", range(2, 9))
def test_each_share_is_written_once_by_who_holds_it_unless_both_its_holders_died(size: int) -> None:
    for num_left in range(1, size + 1):
        for left in combinations(range(size), num_left):
            writers = deal_shares([saving(rank, size) for rank in left])
            is_lost = any({share, (share - 1) % size}.isdisjoint(left) for share in range(size))
            assert (writers is None) == is_lost
            for share, writer in enumerate(writers or []):
                assert writer in left and writer == (share if share in left else (share - 1) % size)


@pytest.mark.parametrize(("num_nodes", "num_here"), [(2, 1), (2, 2), (2, 4), (3, 2), (4, 8)])
def test_of_several_nodes_each_may_be_lost_whole_and_all_shares_are_written(num_nodes: int, num_here: int) -> None:
    size = num_nodes * num_here
    worlds = [World(rank, size, rank % num_here, num_here) for rank in range(size)]
    assert sorted(world.second_holder_of for world in worlds) == list(range(size))
    for node in range(num_nodes):
        left = [rank for rank in range(size) if rank // num_here != node]
        writers = deal_shares(
            [saving(rank, size)._replace(second_share=worlds[rank].second_holder_of) for rank in left]
        )
        assert writers is not None and set(writers) == set(left)


def test_where_one_node_is_left_its_ranks_hold_each_other_s_shares() -> None:
    world = World(3, 4, 1, 2)
    world.enter([2, 3], None, view=1)
    assert (world.rank, world.second_holder_of) == (1, 0)


def test_a_share_that_was_not_copied_twice_is_lost_with_its_rank() -> None:
    assert deal_shares([saving(0), saving(2), saving(3)]) == [0, 0, 2, 3]
    assert deal_shares([saving(0, holds_second=False), saving(2), saving(3)]) is None


def test_the_save_goes_on_with_a_rank_that_has_nothing_of_it() -> None:
    fate = fate_of(JOINED, saving(1), saving(2), saving(3), without_state=[0])
    assert fate == Fate(phase=Phase.FILES, source=1, writers=[3, 1, 2, 3])
    assert fate.goes_on and not JOINED.is_beyond_repair


def test_a_save_of_which_nobody_holds_a_share_is_lost() -> None:
    assert fate_of(saving(2), saving(3)) == Fate(is_lost=True)


def test_what_was_given_up_before_is_lost_for_all() -> None:
    assert fate_of(SaveStanding(Phase.DROPPED), SaveStanding(Phase.DROPPED)) == Fate(is_lost=True)


def test_the_index_that_one_rank_has_is_put_whoever_died() -> None:
    for others, writers in (([0], [0, 0, 2, 2]), ([1], None)):
        fate = fate_of(*map(saving, others), saving(2, phase=Phase.INDEX))
        assert (fate.phase, fate.source, fate.writers) == (Phase.INDEX, 1, writers)


def test_a_save_that_failed_is_repeated_by_all() -> None:
    fate = fate_of(saving(0), saving(2, phase=Phase.DROPPED), saving(3))
    assert (fate.phase, fate.source, fate.writers) == (Phase.DROPPED, 1, [0, 0, 2, 3])


def test_a_checkpoint_of_which_one_rank_knows_that_it_is_complete_is_complete_for_all() -> None:
    ended = SaveStanding(completed_step=STEP)
    assert fate_of(ended, saving(2, phase=Phase.INDEX)) == Fate(is_complete=True)
    assert fate_of(SaveStanding(completed_step=STEP - 1), saving(2, phase=Phase.INDEX)).phase is Phase.INDEX


def test_a_save_that_one_rank_has_let_go_is_let_go_by_all() -> None:
    assert fate_of(JOINED, saving(2, phase=Phase.DROPPED)) == Fate(is_let_go=True)


def test_who_has_not_begun_the_save_yet_has_not_let_it_go() -> None:
    begun = saving(0, size=2)._replace(is_beyond_repair=0)
    assert fate_of(begun, SaveStanding()) == Fate(phase=Phase.FILES, source=0, writers=[0, 0])
    assert fate_of(begun._replace(second_share=-1), SaveStanding()) == Fate(is_lost=True)


def test_where_no_save_is_under_way_nothing_becomes_of_it() -> None:
    assert fate_of(SaveStanding(), SaveStanding(completed_step=STEP)) == Fate()
