"""Rows as peers give them, put together to one padded batch as their users would do it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.loaders.measuring import Padded

# What the model is given beside tokens; the ids, which Holdfast reads for its ledger, peers need not read.
FIXED_COLUMNS = ("label", "numeric", "categorical")


def pad(rows: Sequence[NDArray[Any]]) -> Padded:
    """Token ids of each row as [B, T] int32, T being the length of the longest."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    tokens = np.zeros((len(rows), int(lengths.max())), np.int32)
    for place, row in enumerate(rows):
        tokens[place, : len(row)] = row
    return Padded(tokens, lengths)


def collate(rows: Sequence[dict[str, Any]]) -> tuple[Padded, dict[str, NDArray[Any]]]:
    """All that the model is given of these rows."""
    fixed = {name: np.stack([row[name] for row in rows]) for name in FIXED_COLUMNS}
    return pad([row["tokens"] for row in rows]), fixed
