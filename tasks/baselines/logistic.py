"""Logistic regression on sparse rows, by steps on few rows at a time.

Invariant: a pure function of the rows and of the number of passes: the order of rows is drawn from a fixed seed, sums
are made in one order by one thread, and no clock decides when it ends.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

PASSES = 12
# The pass from which on weights are averaged, by which the last steps' noise goes.
AVERAGED_FROM = 8
# Rows of one step: so many that a pass has this many steps, but no fewer or more than these.
STEPS_OF_A_PASS = 128
FEWEST_ROWS, MOST_ROWS = 8, 512
RATE = 0.3
# Of the squared weights, in the loss of all rows together.
PENALTY = 0.1
SEED = 0

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Linear:
    """A score for each of C classes: `weights` [F, C], `bias` [C]."""

    weights: Floats
    bias: Floats

    def scores(self, rows: sparse.csr_array) -> Floats:
        """[N, C]: the logit of each class."""
        found: Floats = rows @ self.weights + self.bias
        return found


def fit_logistic(
    rows: sparse.csr_array, targets: Floats, row_weights: Floats, is_one_of: bool, tick: Callable[[], None]
) -> Linear:
    """The model that gives rows [N, F] their targets [N, C], 1 for each class that a row has and 0 for others.

    A row `is_one_of` the classes, then all share one softmax; else each class has a logistic regression of its own.
    `tick` is called before each step, and may raise.
    """
    fitting = _Fitting(rows.shape[1], targets.shape[1], PENALTY / max(1, rows.shape[0]), is_one_of)
    generator = np.random.Generator(np.random.Philox(SEED))
    size = min(MOST_ROWS, max(FEWEST_ROWS, rows.shape[0] // STEPS_OF_A_PASS))
    for number in range(PASSES):
        order = generator.permutation(rows.shape[0])
        for first in range(0, len(order), size):
            tick()
            chosen = order[first : first + size]
            fitting.step(rows[chosen], targets[chosen], row_weights[chosen])
        if number >= AVERAGED_FROM:
            fitting.take_in()
    return fitting.averaged()


class _Fitting:
    """AdaGrad (Duchi et al., JMLR 12, 2011): a step changes the weights of the terms that its rows have alone."""

    def __init__(self, num_terms: int, num_classes: int, penalty: float, is_one_of: bool) -> None:
        self._penalty = np.float32(penalty)
        self._is_one_of = is_one_of
        self._weights = np.zeros((num_terms, num_classes), np.float32)
        self._squares = np.full((num_terms, num_classes), 1e-8, np.float32)
        self._bias, self._bias_squares = np.zeros(num_classes, np.float32), np.full(num_classes, 1e-8, np.float32)
        self._sum, self._bias_sum, self._num_summed = np.zeros_like(self._weights), np.zeros_like(self._bias), 0

    def step(self, rows: sparse.csr_array, targets: Floats, row_weights: Floats) -> None:
        terms, places = np.unique(rows.indices, return_inverse=True)
        local = sparse.csr_array((rows.data, places, rows.indptr), shape=(rows.shape[0], len(terms)))
        weights = self._weights[terms]
        errors = self._probabilities(local @ weights + self._bias) - targets
        errors *= (row_weights / np.float32(rows.shape[0]))[:, None]
        gradient = local.T @ errors + self._penalty * weights
        squares = self._squares[terms] + gradient * gradient
        self._squares[terms] = squares
        self._weights[terms] = weights - np.float32(RATE) * gradient / np.sqrt(squares)
        bias_gradient = errors.sum(axis=0)
        self._bias_squares += bias_gradient * bias_gradient
        self._bias -= np.float32(RATE) * bias_gradient / np.sqrt(self._bias_squares)

    def take_in(self) -> None:
        """Take the weights as they are now into the average."""
        self._sum += self._weights
        self._bias_sum += self._bias
        self._num_summed += 1

    def averaged(self) -> Linear:
        number = np.float32(max(1, self._num_summed))
        return Linear(self._sum / number, self._bias_sum / number)

    def _probabilities(self, scores: Floats) -> Floats:
        if self._is_one_of:
            found: Floats = np.exp(scores - scores.max(axis=1, keepdims=True))
            found /= found.sum(axis=1, keepdims=True)
            return found
        odds = np.exp(-np.abs(scores))  # which never overflows
        likely: Floats = np.where(scores > 0, np.float32(1), odds) / (1 + odds)
        return likely
