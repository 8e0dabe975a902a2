"""Work that is begun before its result is needed.

Invariant: results come in the order of the items, and no more of them wait than is given.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def look_ahead(
    pool: ThreadPoolExecutor, work: Callable[[_Item], _Result], items: Iterable[_Item], depth: int
) -> Iterator[_Result]:
    """`work` for each item, in the pool's threads: for at most `depth` items behind the one that is waited for.

    A failure is raised when its turn comes. Then, as at the end, nothing that waits is begun any more.
    """
    pending: deque[Future[_Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) > depth:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
