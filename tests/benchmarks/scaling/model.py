"""How long a step takes on a number of ranks, from what a link and a microbatch take: the alpha-beta model.

A message costs `latency` (alpha), and each byte 1 / `bytes_per_second` (beta): Hockney, The communication challenge for
MPP, Parallel Computing 20 (1994). The sum over ranks is a ring: every rank sends 2 (N - 1) messages of an N-th of the
bytes (Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, 2005). Nothing is
assumed to travel while something is computed, so a prediction is of the slowest case.
"""

from dataclasses import dataclass
from math import ceil, log2

# Of a gradient's value, by `train.sum`: 64-bit integers, or 32-bit floating point.
BYTES_OF_VALUE = {"exact": 8, "fast": 4}


@dataclass(frozen=True)
class Link:
    """Between two ranks: seconds for a message of no bytes, and bytes for a second, in each direction."""

    latency: float
    bytes_per_second: float

    def sum_over(self, num_bytes: int, num_ranks: int) -> float:
        """Seconds for a sum of so many bytes over ranks."""
        num_messages = 2 * (num_ranks - 1)
        return num_messages * (self.latency + num_bytes / num_ranks / self.bytes_per_second)

    def agree(self, num_ranks: int) -> float:
        """Seconds for the decision at a step's boundary: a few bytes up a binomial tree, and down again."""
        return 2 * ceil(log2(num_ranks)) * self.latency if num_ranks > 1 else 0.0


@dataclass(frozen=True)
class Work:
    """What a step is: microbatches of `device_seconds` each, and a sum of `num_values` values.

    `host_seconds` of each microbatch, and `rank_seconds` of each of several ranks, are computed by processors of which
    all ranks together have `num_cores`; none where each rank has its own.
    """

    num_microbatches: int
    device_seconds: float
    num_values: int
    host_seconds: float = 0.0
    rank_seconds: float = 0.0
    num_cores: int = 1

    def step_seconds(self, num_ranks: int, link: Link, kind: str = "exact") -> float:
        """The seconds of the rank with most microbatches, which the others wait for."""
        device = ceil(self.num_microbatches / num_ranks) * self.device_seconds
        of_ranks = self.rank_seconds * num_ranks if num_ranks > 1 else 0.0
        host = (self.host_seconds * self.num_microbatches + of_ranks) / min(num_ranks, self.num_cores)
        exchange = link.sum_over(BYTES_OF_VALUE[kind] * self.num_values, num_ranks) if num_ranks > 1 else 0.0
        return device + host + exchange + link.agree(num_ranks)

    def efficiency(self, num_ranks: int, link: Link, kind: str = "exact") -> float:
        """Share of `num_ranks` times the speed of one rank."""
        return self.step_seconds(1, link, kind) / (num_ranks * self.step_seconds(num_ranks, link, kind))
