"""Samples of one split, read in windows: each is decoded by one of a machine's ranks, and mapped by all of them.

Invariant: holds no position; what is read depends on the order and the data set alone.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from storage.datasets import DatasetManifest, token_type
from storage.objects.store import Store
from training.data.order import WINDOW_GROUPS, Order, Window
from training.data.row_groups import RowGroups
from training.data.samples import Samples, join
from training.data.shared_arrays import KEPT_SETS, SharedArrays, Waiting
from training.data.waiting import StoreWait
from training.data.windows import OwnWindows, SharedWindows, Windows


class SampleReader:
    """Reads `split`, with windows in `folder` on local disk. Not for use by several threads at once.

    With `looks_ahead` the window after the one that is read is decoded meanwhile, in a thread. As many windows stay in
    the folder as take `kept_bytes` in the shards, but at least the few that ranks need: what is read again is not
    decoded again. One that `reads_for_all` is alone in having need of windows, and keeps those it decodes in memory.
    A store that does not answer is waited for as `wait` allows; `waiting` is around each wait for another process.
    """

    def __init__(
        self,
        store: Store,
        dataset: DatasetManifest,
        split: str,
        folder: Path,
        looks_ahead: bool = False,
        kept_bytes: int = 0,
        reads_for_all: bool = False,
        wait: StoreWait | None = None,
        waiting: Waiting = nullcontext,
    ) -> None:
        self.num_rows = dataset.splits[split].num_rows
        self.group_rows = dataset.row_group_rows
        self.split = split
        self.folder = folder
        self._row_groups = RowGroups(store, dataset, split, folder)
        split_bytes = sum(shard.num_bytes for shard in dataset.splits[split].shards)
        num_kept = kept_bytes * self.num_rows // (split_bytes * self.group_rows * WINDOW_GROUPS)
        files = SharedArrays(folder, f"{split}-samples", max(KEPT_SETS, num_kept), waiting)
        kind = OwnWindows if reads_for_all else SharedWindows
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="next-window") if looks_ahead else None
        self._windows: Windows = kind(files, np.dtype(token_type(dataset.vocabulary_size)), self._ahead)
        self._wait = wait or StoreWait()
        self._last_read: tuple[str, Samples] | None = None

    def read(self, order: Order, cursor: int, count: int) -> Samples:
        """The samples [cursor, cursor + count) of an order. One reader serves one order."""
        row_ranges = order.row_ranges(cursor, count)
        return join([self._window(order, found.window).at(slice(found.start, found.stop)) for found in row_ranges])

    def _window(self, order: Order, window: Window) -> Samples:
        key = self._key(order, window)
        if self._last_read is None or self._last_read[0] != key:
            self._last_read = key, self._open_window(order, window, key)
        return self._last_read[1]

    def _open_window(self, order: Order, window: Window, key: str) -> Samples:
        decode = partial(self._decode_window, order, window)
        samples = self._wait.read(f"Samples of split {self.split}", partial(self._windows.get, key, decode))
        following = order.window_after(window)
        if following is not None:
            self._windows.prepare(self._key(order, following), partial(self._decode_window, order, following))
        return samples

    def _key(self, order: Order, window: Window) -> str:
        return f"{order.name}-{window.epoch}-{window.number}"

    def _decode_window(self, order: Order, window: Window) -> Samples:
        return self._decode(order.window_rows(window))

    def _decode(self, rows: NDArray[np.int64]) -> Samples:
        """These rows, which are all rows of some row groups, in this order."""
        groups = np.unique(rows // self.group_rows)
        samples = join(list(self._row_groups.decode(groups.tolist())))
        # All groups but the last of the split are full.
        first_indices = np.arange(len(groups)) * self.group_rows
        indices = first_indices[np.searchsorted(groups, rows // self.group_rows)] + rows % self.group_rows
        return samples.at(indices)
