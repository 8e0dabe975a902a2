"""The random draws that both kinds of corpus are made of, each for a whole block of rows at once.

Invariant: a block's draws are a pure function of (seed, block index): no block needs another one to have been made.
The same bytes come out wherever NumPy has the same version; it keeps its streams stable, but does not promise to.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

NUM_SHARDS = 256
_FIRST_MICROSECOND = 1_767_225_600_000_000  # 2026-01-01
_MICROSECONDS = 180 * 24 * 3600 * 1_000_000
_TIMESTAMP = pa.timestamp("us")


def block_generator(seed: int, block_index: int) -> np.random.Generator:
    """Philox is counter based: any key gives an independent stream, at no cost."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, block_index], dtype=np.uint64)))


def sample_ids(seed: int, first_row: int, num_rows: int) -> pa.Array:
    """16 hex digits a row, unique in the corpus: SplitMix64's output function is a bijection of 64-bit integers."""
    offset = np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
    mixed = np.arange(first_row, first_row + num_rows, dtype=np.uint64) + offset
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return pa.array([f"{value:016x}" for value in mixed.tolist()], pa.string())


def exact_shares(generator: np.random.Generator, shares: Sequence[float], num_rows: int) -> Integers:
    """An index for each row, in random order; each index has its share of the rows, give or take one.

    Independent draws would leave a class of 0.3 % out of a small corpus now and then.
    """
    positions = (generator.permutation(num_rows) + generator.random(num_rows)) / num_rows
    return choices(positions, shares)


def choices(positions: Floats, shares: Sequence[float] | Floats) -> Integers:
    """The index whose share of [0, 1) holds the position, for each position."""
    bounds = np.cumsum(np.asarray(shares, dtype=np.float64))
    indices: Integers = np.searchsorted(bounds[:-1] / bounds[-1], positions, side="right").astype(np.int64)
    return indices


def choices_by_row(generator: np.random.Generator, shares: Floats, rows: Integers) -> Integers:
    """One draw per entry of `rows`, from the distribution in that row of `shares` (R, K)."""
    bounds = np.cumsum(shares, axis=1) / shares.sum(axis=1, keepdims=True)
    positions = generator.random(len(rows))
    indices: Integers = (positions[:, None] >= bounds[rows, :-1]).sum(axis=1).astype(np.int64)
    return indices


def log_normal_lengths(
    generator: np.random.Generator, median: float, sigma: float, bounds: tuple[int, int], num_rows: int
) -> Integers:
    """Log-normal whole numbers, clipped to the bounds, both included."""
    lengths = np.exp(generator.normal(np.log(median), sigma, num_rows))
    return np.clip(np.rint(lengths), *bounds).astype(np.int64)


def row_positions(lengths: Integers) -> Integers:
    """0, 1, 2, ... within each row, for rows of these lengths laid end to end."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1], dtype=np.int64) - np.repeat(ends - lengths, lengths)


def with_missing(generator: np.random.Generator, values: pa.Array | Floats | Integers, share: float) -> pa.Array:
    """The values as an Arrow array in which this share of the entries, by independent draws, is null."""
    array = values if isinstance(values, pa.Array) else pa.array(values)
    missing = pa.array(generator.random(len(array)) < share)
    return pa.compute.if_else(missing, pa.scalar(None, array.type), array)


def names(indices: Integers, vocabulary: Sequence[str]) -> pa.Array:
    """The strings that the indices stand for."""
    return pa.array(vocabulary, pa.string()).take(pa.array(indices))


def shard_ids(generator: np.random.Generator, num_rows: int) -> pa.Array:
    """The part of some upstream system that a row came from: as many however large the corpus is."""
    return names(generator.integers(0, NUM_SHARDS, num_rows), [f"shard-{index:03d}" for index in range(NUM_SHARDS)])


def creation_times(generator: np.random.Generator, num_rows: int) -> pa.Array:
    """Microseconds in the half year from 1 January 2026, in no order."""
    return pa.array(_FIRST_MICROSECOND + generator.integers(0, _MICROSECONDS, num_rows), pa.int64()).cast(_TIMESTAMP)
