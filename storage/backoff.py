"""Pauses between attempts at what may fail for a while: each about twice as long as the one before.

Invariant: pauses are drawn from the operating system's random numbers. So ranks that failed together do not ask again
together, forked ones included, and nothing is taken from Python's shared generator, which training seeds at each step.
"""

import random
from dataclasses import dataclass

MOST_DOUBLINGS = 64  # attempts are counted without end, and a float is not

_random = random.SystemRandom()


@dataclass(frozen=True)
class Backoff:
    """Pauses of at most `first_seconds`, doubled after each attempt up to `limit_seconds`.

    Each is drawn between `least_share` of the longest that it may be and that. Attempts are counted from 1.
    """

    first_seconds: float
    limit_seconds: float
    least_share: float = 0.5

    def longest_seconds(self, attempt: int) -> float:
        """Longest pause after an attempt."""
        return min(self.limit_seconds, self.first_seconds * 2.0 ** min(attempt - 1, MOST_DOUBLINGS))

    def mean_seconds(self, attempt: int) -> float:
        """Pause after an attempt, on average."""
        return self.longest_seconds(attempt) * (1 + self.least_share) / 2

    def draw_seconds(self, attempt: int) -> float:
        """Pause after an attempt, at random."""
        longest = self.longest_seconds(attempt)
        return _random.uniform(self.least_share * longest, longest)

    def count_pauses(self, seconds: float) -> int:
        """Fewest pauses that together may last `seconds`."""
        count, together = 0, 0.0
        while together < seconds:
            count += 1
            together += self.longest_seconds(count)
        return count
