"""Which rank takes which item of a list, by the items' costs: leaves of a batch, files of a checkpoint.

Invariant: every item goes to one rank whole; the deal is a function of the costs and the number of ranks alone.
"""


def deal(costs: list[int], num_ranks: int) -> list[list[int]]:
    """The items of each rank, by their positions: the costliest item left goes to the rank with the lowest cost so far.

    Graham, "Bounds on multiprocessing timing anomalies", 1969: at most 4/3 of the best possible time. Every rank gets
    an item when there are at least as many as ranks.
    """
    ranks: list[list[int]] = [[] for _ in range(num_ranks)]
    loads = [0] * num_ranks
    for item in sorted(range(len(costs)), key=lambda item: (-costs[item], item)):
        rank = loads.index(min(loads))
        ranks[rank].append(item)
        loads[rank] += costs[item]
    return [sorted(items) for items in ranks]
