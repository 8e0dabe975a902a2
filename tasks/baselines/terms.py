"""What the linear model sees of a sample: its tokens and its pairs of neighbouring tokens, counted and weighted.

Invariant: a pure function of the rows, in whatever row groups they come. Pairs share a fixed number of columns by a
hash, so that nothing grows with what the data hold; terms and their weights are those of the training split alone.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from training.data.samples import Samples

# Columns of pairs of tokens. Of 100,000 different pairs in so many columns one in ten shares its own.
PAIR_BITS = 20
# Multiplicative hashing (Knuth, The Art of Computer Programming, volume 3, section 6.4), with 2^64 / golden ratio.
_HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)
# A term of a single row says nothing about another one.
FEWEST_ROWS = 2


def count_terms(samples: Samples, vocabulary_size: int) -> sparse.csr_array:
    """How often each term is in each sample, [N, vocabulary_size + pairs] in float32."""
    tokens = samples.tokens.gather(np.zeros(len(samples), np.int64), 0).view(samples.token_type).astype(np.int64)
    rows = np.repeat(np.arange(len(samples)), samples.lengths)
    is_pair = rows[1:] == rows[:-1]
    pairs = (tokens[:-1] * vocabulary_size + tokens[1:])[is_pair].astype(np.uint64)
    hashed = ((pairs * _HASH_FACTOR) >> np.uint64(64 - PAIR_BITS)).astype(np.int64)
    columns = np.concatenate([tokens, vocabulary_size + hashed])
    found = (np.concatenate([rows, rows[1:][is_pair]]), columns)
    shape = (len(samples), vocabulary_size + (1 << PAIR_BITS))
    return sparse.csr_array(sparse.coo_array((np.ones(len(columns), np.float32), found), shape=shape))


@dataclass(frozen=True)
class Weighting:
    """The terms that the model knows, F columns of what `count_terms` gives, and the weight of each, [F]."""

    columns: NDArray[np.intp]
    weights: NDArray[np.float32]

    def apply(self, counts: sparse.csr_array) -> sparse.csr_array:
        """Each sample's known terms, [N, F]: TF-IDF with the logarithm of counts, of length 1 or 0."""
        known: sparse.csr_array = counts[:, self.columns]
        rows = np.repeat(np.arange(known.shape[0]), np.diff(known.indptr))
        values = (1 + np.log(known.data)) * self.weights[known.indices]
        lengths = np.sqrt(np.bincount(rows, values.astype(np.float64) ** 2, minlength=known.shape[0]))
        values = (values / lengths[rows]).astype(np.float32)
        return sparse.csr_array((values, known.indices, known.indptr), shape=known.shape)


def weighting_of(counts: sparse.csr_array, max_terms: int) -> Weighting:
    """The terms of the training split that are in the most of its rows, at most so many."""
    num_rows, num_columns = counts.shape
    num_with: NDArray[Any] = np.bincount(counts.indices, minlength=num_columns)
    by_number = np.argsort(-num_with, kind="stable")[:max_terms]
    columns = np.sort(by_number[num_with[by_number] >= FEWEST_ROWS])
    weights = np.log((1 + num_rows) / (1 + num_with[columns])) + 1
    return Weighting(columns, weights.astype(np.float32))
