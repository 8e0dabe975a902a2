"""Samples of one split, read in windows: each is decoded by one of a machine's ranks, and mapped by all of them.

Invariant: holds no position; what is read depends on the order and the data set alone. A window in the folder is whole
or not there, and is never changed; it may be removed at any time: who needs it again decodes it again.
"""

import fcntl
import shutil
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.lib.format import header_data_from_array_1_0, open_memmap, write_array_header_1_0
from numpy.typing import NDArray

from storage.datasets import DatasetManifest
from storage.errors import StoreError
from storage.objects.store import Store
from training.data.order import Order, Window
from training.data.row_groups import RowGroups
from training.data.samples import Samples, join

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
                _remove(self._path(order, oldest))
            following = order.window_after(window)
            # What goes wrong there goes wrong again when it is read, and is told then.
            if self._ahead is not None and following is not None:
                self._ahead.submit(self._map_or_make, order, following)
        return found

    def _map_or_make(self, order: Order, window: Window) -> Samples:
        path = self._path(order, window)
        try:
            while (found := _find(path)) is None:
                path.parent.mkdir(parents=True, exist_ok=True)
                with _locked(path.with_name(f".{path.name}.lock")):
                    if not path.is_dir():
                        _save(self._decode(order.window_rows(window)), path)
            return found
        except OSError as error:
            raise StoreError(
                f"Cannot keep decoded samples in {path.parent}: {error.strerror or error}. Check that the disk has "
                "space left, or set scratch to a folder on another disk."
            ) from error

    def _path(self, order: Order, window: Window) -> Path:
        return self._folder / f"{self._split}-{order.name}-{window.epoch}-{window.number}"

    def _decode(self, rows: NDArray[np.int64]) -> Samples:
        """These rows, which are all rows of some row groups, in this order."""
        groups = np.unique(rows // self.group_rows)
        samples = join(list(self._row_groups.decode(groups.tolist())))
        # All groups but the last of the split are full.
        first_places = np.arange(len(groups)) * self.group_rows
        return samples.at(first_places[np.searchsorted(groups, rows // self.group_rows)] + rows % self.group_rows)


def _save(samples: Samples, path: Path) -> None:
    part = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    part.mkdir()
    for name, array in vars(samples).items():
        # Not through a map: a disk without space would end the process by SIGBUS instead of an error.
        with (part / f"{name}.npy").open("xb") as file:
            write_array_header_1_0(file, header_data_from_array_1_0(array))
            file.write(np.ascontiguousarray(array).data)
    part.rename(path)


def _remove(path: Path) -> None:
    """For who maps it already it stays. Another rank may have been quicker."""
    gone = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _find(path: Path) -> Samples | None:
    """The samples there, mapped; None if they are not there, or are being removed."""
    try:
        mapped = {name: open_memmap(path / f"{name}.npy", mode="r") for name in Samples.__dataclass_fields__}
    except FileNotFoundError:
        return None
    # As plain arrays: each slice of NumPy's own kind for mapped files is several times as slow.
    return Samples(**{name: array.view(np.ndarray) for name, array in mapped.items()})


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
