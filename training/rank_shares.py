"""Which rank takes which item of a list, by the items' costs: microbatches of a batch, files of a checkpoint.

Invariant: every item goes to one rank whole; the assignment is a function of the costs and the number of ranks alone.
"""

import heapq


def assign(costs: list[int], num_ranks: int) -> list[list[int]]:
    """The items of each rank, by their positions: the costliest item left goes to the rank with the lowest cost so far.

    Graham, "Bounds on multiprocessing timing anomalies", 1969: at most 4/3 of the best possible time. Every rank gets
    an item when there are at least as many as ranks.
    """
    ranks: list[list[int]] = [[] for _ in range(num_ranks)]
    loads = [(0, rank) for rank in range(num_ranks)]  # a heap: the lowest load first, of equal ones the first rank
    for item in sorted(range(len(costs)), key=costs.__getitem__, reverse=True):  # of equal ones the first item
        load, rank = loads[0]
        ranks[rank].append(item)
        heapq.heapreplace(loads, (load + costs[item], rank))
    return [sorted(items) for items in ranks]
