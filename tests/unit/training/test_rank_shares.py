"""Items assigned to ranks by cost: none lost, none twice, and close to the lowest possible cost of a rank."""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from training.rank_shares import assign

all_costs = st.lists(st.integers(1, 1000), min_size=1, max_size=7)


@settings(deadline=None)
@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=60), st.integers(1, 60))
def test_every_item_is_assigned_once_and_every_rank_has_one(costs: list[int], num_ranks: int) -> None:
    ranks = assign(costs, num_ranks)
    assert sorted(item for items in ranks for item in items) == list(range(len(costs)))
    assert len(ranks) == num_ranks
    assert sum(not items for items in ranks) == max(0, num_ranks - len(costs))


@settings(deadline=None)
@given(all_costs, st.integers(1, 3))
def test_the_slowest_rank_takes_at_most_four_thirds_of_the_best_possible_time(costs: list[int], num_ranks: int) -> None:
    found = max(sum(costs[item] for item in items) for items in assign(costs, num_ranks))
    best = min(
        max(sum(cost for cost, place in zip(costs, places, strict=True) if place == rank) for rank in range(num_ranks))
        for places in product(range(num_ranks), repeat=len(costs))
    )
    assert 3 * found <= 4 * best
