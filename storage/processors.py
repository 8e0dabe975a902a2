"""How many processors this process may use, as its job, its container or `taskset` leaves it of the machine's.

Invariant: all that works in parallel takes its number from here: the machine's own is that of other people's jobs, too.
"""

import os


def count_processors() -> int:
    """Of those that this process may run on: at least 1."""
    return len(os.sched_getaffinity(0))
