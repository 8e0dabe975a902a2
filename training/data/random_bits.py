"""Random bits as a pure function of what they are for.

They come from Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), whose stream NumPy keeps
stable over versions. Invariant: the same purpose gives the same bits, in every process and with every version of NumPy.
"""

import hashlib
import threading

import numpy as np
from numpy.typing import NDArray

_KEY = np.dtype("<u8")


class _Generator(threading.local):
    """One for each thread: to make one takes three times as long as to set it back to its beginning."""

    def __init__(self) -> None:
        self._philox = np.random.Philox(key=0)
        self._beginning = self._philox.state

    def draw(self, key: bytes, count: int) -> NDArray[np.uint64]:
        """The first `count` words of the stream with this key, of 16 bytes."""
        self._beginning["state"]["key"] = np.frombuffer(key, _KEY)
        self._philox.state = self._beginning
        words: NDArray[np.uint64] = self._philox.random_raw(count)
        return words


_generator = _Generator()


def random_bits(count: int, *purpose: int | str) -> NDArray[np.uint64]:
    """`count` random 64-bit words that depend on `purpose` alone."""
    # A number of NumPy's own types is written in another way, and would silently be another purpose.
    words = tuple(word if isinstance(word, str) else int(word) for word in purpose)
    return _generator.draw(hashlib.sha256(repr(words).encode()).digest()[:16], count)
