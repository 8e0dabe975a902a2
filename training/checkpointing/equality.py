"""What ranks find out about each other where they must have the same: that they have, or which of them has not.

Invariant: all ranks come here at the same boundary, come to the same answer, and raise the same error: a collective
that some of them left out would keep the others waiting.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch

from storage.errors import UnequalRanksError
from training.checkpointing.exchange import gather_texts
from training.collectives import GREATEST, all_reduce
from training.rank_status import Collective
from training.world import World

MAX_TENSORS_SHOWN = 3
LEAST = torch.iinfo(torch.int64).min
GOES_ON = "The run goes on from its last promoted checkpoint."
AGAIN = "If it happens again with the same machine, take it away and test its memory."


def require_equal_state(step: int, names: Sequence[str], hashes: Mapping[str, int] | None, world: World) -> None:
    """Raise `UnequalRanksError` unless all ranks that have hashes of these names, signed 64-bit, have the same.

    None: this rank has none. Of those that have some all have all.
    """
    values = torch.full((len(names),), LEAST) if hashes is None else torch.tensor([hashes[name] for name in names])
    # The greatest of all complements is the complement of the least. Who has none has what changes neither.
    extremes = torch.cat([values, values if hashes is None else ~values])
    all_reduce(extremes, world, Collective.HASHES, GREATEST)
    greatest, least = extremes[: len(values)], ~extremes[len(values) :]
    if torch.equal(greatest, least):
        return
    table = torch.zeros(world.size, len(values), dtype=torch.int64)
    table[world.rank] = values
    all_reduce(table, world, Collective.HASHES)
    labels = gather_texts(world, "" if hashes is None else world.label, Collective.LABELS)
    compared = [rank for rank, label in enumerate(labels) if label]
    rows = table[compared].tolist()
    raise UnequalRanksError(describe_unequal_state(step, names, rows, [labels[rank] for rank in compared]))


def wrong_sum(step: int, is_wrong_here: bool, world: World) -> UnequalRanksError:
    """The error of a step, counted from 1, in which some rank received a wrong sum. A collective."""
    found = gather_texts(world, world.label if is_wrong_here else "", Collective.LABELS)
    return UnequalRanksError(describe_wrong_sum(step, list(filter(None, found)), world.size))


def unequal_weights(step: int, hashes: Sequence[int], world: World) -> UnequalRanksError:
    """The error of a step, counted from 1, in which the ranks, by these hashes, had not the same weights. A collective.

    They have the same again: `require_equal_state` names more.
    """
    odd = _find_minority([hashes])
    is_odd = odd is None or world.rank in odd
    found = gather_texts(world, world.label if is_odd else "", Collective.LABELS)
    return UnequalRanksError(describe_unequal_weights(step, list(filter(None, found)), odd is not None))


def describe_unequal_state(
    step: int, names: Sequence[str], table: Sequence[Sequence[int]], labels: Sequence[str]
) -> str:
    """What differs, and on which of the ranks, where most of them have the same; `table` is [ranks][names]."""
    columns = [[row[index] for row in table] for index in range(len(names))]
    different = [index for index, column in enumerate(columns) if len(set(column)) > 1]
    where = f"in {_list_some([names[index] for index in different])}, of {len(names):,} tensors"
    odd = _find_minority([columns[index] for index in different])
    if odd is None:
        groups = " against ".join(_join_alike(table, labels))
        who = f"{groups}, they differ {where}. No majority shows which is right: either may be wrong"
        whose = "a memory or a processor of one of them"
    else:
        verb = "differs" if len(odd) == 1 else "differ"
        who = f"{_join(labels[rank] for rank in sorted(odd))} {verb} from most of the {len(labels)} ranks {where}"
        whose = "a memory or a processor there"
    return (
        f"At step {step:,} not all ranks have the same state, so no checkpoint was made of it: {who}. What may have "
        f"happened: {whose} changed bits. {GOES_ON} {AGAIN} If it happens each time, the ranks run on processors "
        "or GPUs of different kinds, which do not compute the same bits: use one kind."
    )


def describe_wrong_sum(step: int, labels: Sequence[str], num_ranks: int) -> str:
    """What is known of a sum that was wrong on the ranks with these labels."""
    is_everywhere = len(labels) == num_ranks
    who = "all ranks" if is_everywhere else _join(labels)
    where = "of one of them, nobody can say which, or on the way" if is_everywhere else "there, or on the way there"
    return (
        f"In step {step:,} {who} received another sum of the gradients than the ranks had sent, so nothing was saved "
        f"of it. What may have happened: bits changed in a memory, a processor or a network card {where}. {GOES_ON} "
        f"{AGAIN}"
    )


def describe_unequal_weights(step: int, labels: Sequence[str], is_minority: bool) -> str:
    """What is known of a step whose gradients the ranks with these labels computed of other weights than most did.

    Where no more than half had the same weights, these are all ranks.
    """
    others = "most of the ranks" if is_minority else "each other"
    return (
        f"In step {step:,} {_join(labels)} computed gradients of other weights than {others}, so nothing was saved of "
        "it. A moment later all had the same weights again. What may have happened: a memory or a processor there "
        f"changed bits for a moment. {GOES_ON} {AGAIN}"
    )


def _find_minority(columns: Iterable[Sequence[int]]) -> set[int] | None:
    """The ranks that have not what more than half of them have; None where for one of the columns there is no such."""
    odd: set[int] = set()
    for column in columns:
        value, count = Counter(column).most_common(1)[0]
        if 2 * count <= len(column):
            return None
        odd |= {rank for rank, other in enumerate(column) if other != value}
    return odd


def _join_alike(table: Sequence[Sequence[int]], labels: Sequence[str]) -> list[str]:
    """The ranks that have the same, together."""
    alike: dict[tuple[int, ...], list[str]] = {}
    for row, label in zip(table, labels, strict=True):
        alike.setdefault(tuple(row), []).append(label)
    return [_join(group) for group in alike.values()]


def _join(labels: Iterable[str]) -> str:
    return " and ".join(labels)


def _list_some(names: Sequence[str]) -> str:
    num_more = len(names) - MAX_TENSORS_SHOWN
    return ", ".join(names[:MAX_TENSORS_SHOWN]) + (f" and {num_more:,} more" if num_more > 0 else "")
