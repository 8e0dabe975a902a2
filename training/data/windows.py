"""Windows of decoded samples: in files that all processes of a machine map, or in the memory of the only reader.

Invariant: a window is the same samples wherever it is kept, and whichever process decoded it.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from training.data.samples import Samples, as_arrays, from_arrays
from training.data.shared_arrays import SharedArrays


class Windows(Protocol):
    """Windows of samples, by their names."""

    def get(self, name: str, decode: Callable[[], Samples]) -> Samples:
        """A window, which is decoded if it is not there. Raises what `decode` raises, and `StoreError`."""

    def prepare(self, name: str, decode: Callable[[], Samples]) -> None:
        """Have it there soon, if there is a thread for that. What goes wrong there goes wrong again in `get`."""


class SharedWindows:
    """Whichever process needs one first decodes it, into a file that all of them map."""

    def __init__(self, files: SharedArrays, token_type: np.dtype[Any], thread: ThreadPoolExecutor | None) -> None:
        self._files = files
        self._token_type = token_type
        self._thread = thread

    def get(self, name: str, decode: Callable[[], Samples]) -> Samples:
        return from_arrays(self._files.get(name, lambda: as_arrays(decode())), self._token_type)

    def prepare(self, name: str, decode: Callable[[], Samples]) -> None:
        if self._thread is not None and name not in self._files:
            self._thread.submit(self._files.map_or_make, name, lambda: as_arrays(decode()))


class OwnWindows:
    """Windows of a process that reads for all: decoded ones stay in memory, since no other would read a file."""

    def __init__(self, files: SharedArrays, token_type: np.dtype[Any], thread: ThreadPoolExecutor | None) -> None:
        self._files = files
        self._token_type = token_type
        self._thread = thread
        self._coming: tuple[str, Future[Samples]] | None = None

    def get(self, name: str, decode: Callable[[], Samples]) -> Samples:
        coming, self._coming = self._coming, None
        if coming is not None and coming[0] == name and coming[1].exception() is None:
            return coming[1].result()
        return self._find_or_decode(name, decode)

    def prepare(self, name: str, decode: Callable[[], Samples]) -> None:
        if self._thread is not None:
            self._coming = name, self._thread.submit(self._find_or_decode, name, decode)

    def _find_or_decode(self, name: str, decode: Callable[[], Samples]) -> Samples:
        found = self._files.find(name)
        return decode() if found is None else from_arrays(found, self._token_type)
