"""order(seed, epoch): which sample stands where, as a pure function without state.

Rows stand in the shards in a random order already. For each epoch the row groups are shuffled, taken in windows of
`WINDOW_GROUPS`, and the rows of a window are shuffled among themselves, so that an epoch is a new order and yet each
row group is read once. Invariant: the rows at the positions of one epoch are a permutation of all rows. Shuffling
sorts by random bits, so nothing here depends on a version of NumPy.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from training.data.random_bits import random_bits

WINDOW_GROUPS = 16


class Window(NamedTuple):
    """Samples that are read together."""

    epoch: int
    number: int


@dataclass(frozen=True)
class RowRange:
    """Samples [start, stop) of a window, which follow each other in the order."""

    window: Window
    start: int
    stop: int


class Order(Protocol):
    """An order of a split's rows, in windows of whole row groups. No other order of the split has its `name`."""

    @property
    def name(self) -> str: ...

    def row_ranges(self, cursor: int, count: int) -> Iterator[RowRange]:
        """Row ranges of the samples [cursor, cursor + count)."""

    def window_rows(self, window: Window) -> NDArray[np.int64]:
        """The rows of a window, in the order."""

    def window_after(self, window: Window) -> Window | None:
        """The window that follows, if one does."""


class RowOrder:
    """The rows as they stand in the shards, once: for what is looked at and not trained on.

    A reader of the first `num_read` of them alone gives their number: a window that has none of these follows no other.
    """

    name = "stored"

    def __init__(self, num_rows: int, group_rows: int, num_read: int | None = None) -> None:
        self.num_rows = num_rows
        self._num_read = num_rows if num_read is None else num_read
        self._window_size = WINDOW_GROUPS * group_rows

    def row_ranges(self, cursor: int, count: int) -> Iterator[RowRange]:
        """Row ranges of the samples [cursor, cursor + count)."""
        end = cursor + count
        while cursor < end:
            index, start = divmod(cursor, self._window_size)
            stop = min(self._window_size, start + end - cursor)
            yield RowRange(Window(0, index), start, stop)
            cursor += stop - start

    def window_rows(self, window: Window) -> NDArray[np.int64]:
        """The rows of a window, as they are stored."""
        first = window.number * self._window_size
        return np.arange(first, min(first + self._window_size, self.num_rows))

    def window_after(self, window: Window) -> Window | None:
        """The window that follows, if one does and has a row to be read."""
        following = window.number + 1
        return Window(0, following) if following * self._window_size < self._num_read else None


class SampleOrder:
    """The order of `num_rows` rows in row groups of `group_rows` (the last may be shorter), for every epoch."""

    def __init__(self, num_rows: int, group_rows: int, seed: int) -> None:
        if num_rows < 1 or group_rows < 1:
            raise ValueError(f"an order needs rows and row groups, found {num_rows} rows in groups of {group_rows}")
        self.num_rows = num_rows
        self.group_rows = group_rows
        self.seed = seed
        self.num_groups = -(-num_rows // group_rows)
        self.name = f"shuffled-{seed}"

    def rows(self, cursor: int, count: int) -> NDArray[np.int64]:
        """Row indices of the samples [cursor, cursor + count) of the run; epochs follow each other without a gap."""
        found = self.row_ranges(cursor, count)
        parts = [self.window_rows(row_range.window)[row_range.start : row_range.stop] for row_range in found]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def row_ranges(self, cursor: int, count: int) -> Iterator[RowRange]:
        """Row ranges of the samples [cursor, cursor + count); epochs follow each other without a gap."""
        end = cursor + count
        while cursor < end:
            epoch, position = divmod(cursor, self.num_rows)
            window = self._window_at(epoch, position)
            first = self._window_start(epoch, window)
            size = self._window_end(epoch, window) - first
            start = position - first
            stop = min(size, start + end - cursor)
            yield RowRange(Window(int(epoch), int(window)), int(start), int(stop))
            cursor += stop - start

    def window_rows(self, window: Window) -> NDArray[np.int64]:
        """The rows of a window, shuffled."""
        return _shuffled_window(self.num_rows, self.group_rows, self.num_groups, self.seed, *window)

    def window_after(self, window: Window) -> Window:
        """The window that follows: after the last one of an epoch comes the first of the next epoch."""
        is_last = (window.number + 1) * WINDOW_GROUPS >= self.num_groups
        return Window(window.epoch + 1, 0) if is_last else Window(window.epoch, window.number + 1)

    def _window_start(self, epoch: int, window: int) -> int:
        """Position in the epoch of the window's first row. Only the window with the short row group is shorter."""
        start = window * WINDOW_GROUPS * self.group_rows
        short_window = _group_positions(self.num_groups, self.seed, epoch)[self.num_groups - 1] // WINDOW_GROUPS
        return start - (self._missing_rows if short_window < window else 0)

    def _window_end(self, epoch: int, window: int) -> int:
        is_last = (window + 1) * WINDOW_GROUPS >= self.num_groups
        return self.num_rows if is_last else self._window_start(epoch, window + 1)

    @property
    def _missing_rows(self) -> int:
        return self.num_groups * self.group_rows - self.num_rows

    def _window_at(self, epoch: int, position: int) -> int:
        window = position // (WINDOW_GROUPS * self.group_rows)
        # The short window moves all later ones forward by less than one row group: at most one window further.
        is_last = (window + 1) * WINDOW_GROUPS >= self.num_groups
        return window if is_last or position < self._window_start(epoch, window + 1) else window + 1


@lru_cache(maxsize=8)
def _shuffled_window(
    num_rows: int, group_rows: int, num_groups: int, seed: int, epoch: int, window: int
) -> NDArray[np.int64]:
    groups = _group_order(num_groups, seed, epoch)[window * WINDOW_GROUPS : (window + 1) * WINDOW_GROUPS]
    spans = [np.arange(group * group_rows, min((group + 1) * group_rows, num_rows)) for group in groups.tolist()]
    rows = np.concatenate(spans)
    return rows[_permutation(len(rows), "rows", seed, epoch, window)]


@lru_cache(maxsize=4)
def _group_order(num_groups: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return _permutation(num_groups, "groups", seed, epoch)


@lru_cache(maxsize=4)
def _group_positions(num_groups: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The inverse: at which position of the epoch each row group stands."""
    return np.argsort(_group_order(num_groups, seed, epoch))


def _permutation(length: int, *purpose: int | str) -> NDArray[np.int64]:
    return np.argsort(random_bits(length, *purpose), kind="stable")
