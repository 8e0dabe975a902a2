"""What a linear model may take: rows, products and seconds.

Invariant: all but the seconds follow from the data, so that the same data give the same figures on any machine. When
the seconds are over, there are no figures.
"""

import time
from dataclasses import dataclass, field

MAX_ROWS = 200_000
MAX_SECONDS = 60.0
MAX_CLASSES = 500
# Counts of terms in all rows, of 8 bytes each; and these times the classes, by which the time of a pass goes.
MAX_COUNTS = 10_000_000
MAX_PRODUCTS = 250_000_000
# Weights, of which the fit has some copies.
MAX_WEIGHTS = 1 << 23
MAX_TERMS = 1 << 17
# Outputs for all test rows together, where each class has a rank of its own.
MAX_OUTPUTS = 50_000_000


class NoBaselineError(Exception):
    """There is no linear model to compare with; the message says why, as a sentence."""


@dataclass(frozen=True)
class Limits:
    """Bounds on one linear model, from when this is made on. `seconds` None: no limit."""

    rows: int = MAX_ROWS
    counts: int = MAX_COUNTS
    products: int = MAX_PRODUCTS
    seconds: float | None = MAX_SECONDS
    _began: float = field(default_factory=time.monotonic)

    def counts_for(self, num_outputs: int) -> int:
        """How many counts of terms the rows may have together, with so many outputs."""
        return min(self.counts, self.products // num_outputs)

    def tick(self) -> None:
        """Raise `NoBaselineError` if the time is over."""
        if self.seconds is not None and time.monotonic() - self._began > self.seconds:
            raise NoBaselineError(
                f"it was not ready after {self.seconds:g} s and was given up. Its figures do not depend on the "
                "machine's speed, so there are none"
            )


def max_terms(num_outputs: int) -> int:
    """How many terms the model may know."""
    return min(MAX_TERMS, MAX_WEIGHTS // num_outputs)
