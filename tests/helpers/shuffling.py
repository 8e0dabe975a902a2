"""How well the order of samples shuffles, against one in which every order of an epoch is as likely.

Invariant: every figure is a function of its arguments, whatever the version of NumPy: rows get their classes by Philox
bits too, as random as rows stand in the shards.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.corpora.policy import CLASSES
from training.data.order import WINDOW_GROUPS, SampleOrder
from training.data.random_bits import random_bits

Integers = NDArray[np.int64]
CLASS_SHARES = np.array([entry.share for entry in CLASSES])


@dataclass(frozen=True)
class Shuffling:
    """Figures of two epochs that follow each other. What is called relative is 1 for a full shuffle."""

    travel_from_shards: float  # mean distance between the places of a sample in the shards and in an epoch, relative
    travel_between_epochs: float  # the same between two epochs
    distance_in_row_group: float  # mean distance in an epoch of two samples of one row group, relative
    same_window_again: float  # chance of two samples of one batch to be in one window of the next epoch
    same_window_again_shuffled: float  # that chance in a full shuffle
    same_batch_again: float
    same_batch_again_shuffled: float


@dataclass(frozen=True)
class Balance:
    """How the shares of classes in chunks of an epoch (windows, batches) differ from their shares in all rows."""

    chi_square: float  # mean over the chunks, by its degrees of freedom: 1 for a full shuffle
    largest_deviation: float  # of the share of any class in any chunk, in standard deviations of a full shuffle
    rarest_lowest: float  # the lowest share of the rarest class in any chunk


def measure_shuffling(num_rows: int, group_rows: int, batch_size: int, seed: int = 0) -> Shuffling:
    """Of the first two epochs; whole batches alone."""
    order = SampleOrder(num_rows, group_rows, seed)
    first, second = (_places(order.rows(epoch * num_rows, num_rows)) for epoch in (0, 1))
    window_size = WINDOW_GROUPS * group_rows
    pairs = _pairs_of_a_batch(order.rows(0, num_rows), batch_size)
    in_group = _pairs_of_a_batch(np.arange(num_rows), group_rows)
    return Shuffling(
        travel_from_shards=_relative(np.abs(first - np.arange(num_rows))),
        travel_between_epochs=_relative(np.abs(first - second)),
        distance_in_row_group=_relative(np.abs(np.diff(first[in_group], axis=0)[0]), num_rows),
        same_window_again=_chance_to_meet(second[pairs], window_size),
        same_window_again_shuffled=(min(window_size, num_rows) - 1) / (num_rows - 1),
        same_batch_again=_chance_to_meet(second[pairs], batch_size),
        same_batch_again_shuffled=(batch_size - 1) / (num_rows - 1),
    )


def measure_balance(num_rows: int, group_rows: int, chunk_size: int, seed: int = 0) -> Balance:
    """Balance of the whole chunks of the first epoch, each of `chunk_size` samples that follow each other."""
    expected = CLASS_SHARES / CLASS_SHARES.sum()
    classes = np.searchsorted(np.cumsum(expected)[:-1], (np.arange(num_rows) + 0.5) / num_rows, side="right")
    of_rows = classes[np.argsort(random_bits(num_rows, "classes", seed))]
    in_order = of_rows[SampleOrder(num_rows, group_rows, seed).rows(0, num_rows)]
    chunks = in_order[: num_rows // chunk_size * chunk_size].reshape(-1, chunk_size)
    counts = np.stack([(chunks == index).sum(axis=1) for index in range(len(expected))], axis=1)
    # Drawn without putting back: the variance is smaller by the share of the rows that is left.
    left = (num_rows - chunk_size) / (num_rows - 1)
    squares = (counts - chunk_size * expected) ** 2 / (chunk_size * expected)
    deviations = np.sqrt(squares / (1 - expected) / left)
    return Balance(
        chi_square=float(squares.sum(axis=1).mean() / (len(expected) - 1) / left),
        largest_deviation=float(deviations.max()),
        rarest_lowest=float((counts[:, expected.argmin()] / chunk_size).min()),
    )


def _places(rows: Integers) -> Integers:
    """At which place of the epoch each row stands."""
    return np.argsort(rows)


def _relative(distances: Integers, num_rows: int | None = None) -> float:
    """Their mean, over that of two places drawn independently, which is a third of all."""
    return float(distances.mean() / ((num_rows or len(distances)) / 3))


def _pairs_of_a_batch(rows: Integers, size: int) -> Integers:
    """Two rows each, [2, pairs], of one whole batch: those that are half a batch apart."""
    batches = rows[: len(rows) // size * size].reshape(-1, size)
    half = size // 2
    return np.stack([batches[:, :half].ravel(), batches[:, half : 2 * half].ravel()])


def _chance_to_meet(places: Integers, size: int) -> float:
    return float((places[0] // size == places[1] // size).mean())
