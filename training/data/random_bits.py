"""Random bits as a pure function of what they are for.

They come from Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), whose stream NumPy keeps
stable over versions. Invariant: the same purpose gives the same bits, in every process and with every version of NumPy.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray


def random_bits(count: int, *purpose: int | str) -> NDArray[np.uint64]:
    """`count` random 64-bit words that depend on `purpose` alone."""
    # A number of NumPy's own types is written in another way, and would silently be another purpose.
    words = tuple(word if isinstance(word, str) else int(word) for word in purpose)
    key = hashlib.sha256(repr(words).encode()).digest()[:16]
    bits: NDArray[np.uint64] = np.random.Philox(key=int.from_bytes(key, "little")).random_raw(count)
    return bits
