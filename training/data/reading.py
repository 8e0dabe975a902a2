"""Samples of one split, read in windows: each is decoded by one of a machine's ranks, and mapped by all of them.

Invariant: holds no position; what is read depends on the order and the data set alone.
"""

from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from storage.datasets import DatasetManifest
from storage.objects.store import Store
from training.data.order import Order, Window
from training.data.row_groups import RowGroups
from training.data.samples import FIELDS, LONG_FIELDS, Samples, join, pieces_of
from training.data.shared_arrays import Pieces, map_or_make, remove

# The one that is read, the next one, and the one before, which a rank that is slower may still need.
KEPT_WINDOWS = 3


class SampleReader:
    """Reads `split`, with windows in `folder` on local disk. Not for use by several threads at once.

    With `looks_ahead` the window after the one that is read is decoded meanwhile, in a thread.
    """

    def __init__(
        self, store: Store, dataset: DatasetManifest, split: str, folder: Path, looks_ahead: bool = False
    ) -> None:
        self.num_rows = dataset.splits[split].num_rows
        self.group_rows = dataset.row_group_rows
        self._split = split
        self._folder = folder
        self._row_groups = RowGroups(store, dataset, split, folder)
        self._windows: OrderedDict[Window, Samples] = OrderedDict()
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="next-window") if looks_ahead else None

    def read(self, order: Order, cursor: int, count: int) -> Samples:
        """The samples [cursor, cursor + count) of an order. One reader serves one order."""
        parts = self.read_parts(order, cursor, count)
        return parts[0] if len(parts) == 1 else join([part.compact() for part in parts])

    def read_parts(self, order: Order, cursor: int, count: int) -> list[Samples]:
        """The same, one part of each window that they stand in, for who needs some of them: nothing is copied."""
        return [
            self._window(order, stretch.window).at(slice(stretch.start, stretch.stop))
            for stretch in order.stretches(cursor, count)
        ]

    def _window(self, order: Order, window: Window) -> Samples:
        found = self._windows.get(window)
        if found is None:
            found = self._windows[window] = self._map_or_make(order, window)
            if len(self._windows) > KEPT_WINDOWS:
                oldest, _ = self._windows.popitem(last=False)
                remove(self._path(order, oldest))
            following = order.window_after(window)
            # What goes wrong there goes wrong again when it is read, and is told then.
            if self._ahead is not None and following is not None:
                self._ahead.submit(self._map_or_make, order, following)
        return found

    def _map_or_make(self, order: Order, window: Window) -> Samples:
        path = self._path(order, window)
        return Samples(**map_or_make(path, FIELDS, lambda: self._decode(order.window_rows(window))))

    def _path(self, order: Order, window: Window) -> Path:
        return self._folder / f"{self._split}-{order.name}-{window.epoch}-{window.number}"

    def _decode(self, rows: NDArray[np.int64]) -> Pieces:
        """These rows, which are all rows of some row groups, in this order; tokens and ids stay as they are."""
        groups = np.unique(rows // self.group_rows)
        pieces = pieces_of(list(self._row_groups.decode(groups.tolist())))
        # All groups but the last of the split are full.
        first_places = np.arange(len(groups)) * self.group_rows
        places = first_places[np.searchsorted(groups, rows // self.group_rows)] + rows % self.group_rows
        return {name: own if name in LONG_FIELDS else [np.concatenate(own)[places]] for name, own in pieces.items()}
