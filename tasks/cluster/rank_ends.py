"""Why ranks of this machine ended, in words, by their agent's account.

Invariant: the rank that met a fault first is named, and one that only lost its connection to it never is. Only what the
agent has seen is told; where it was killed too, nothing is.
"""

import signal
from dataclasses import dataclass
from pathlib import Path

from training.agents.ends import Fault, RankEnd, read_ends

BY_WHOM = {
    signal.SIGKILL: "by a person, or by the kernel when the machine, or this container, had no memory left (`dmesg`)",
    signal.SIGSEGV: "it read memory that is not its own: an error in a library or a driver, or a faulty memory module",
    signal.SIGBUS: "the shared memory in /dev/shm, or the disk under a mapped file, is full",
    signal.SIGABRT: "a library found an error that it cannot go on with; what it printed is in the log",
}
OUT_OF_MEMORY = "by the kernel, since the machine, or this container, had no memory left: it counts such a kill"


@dataclass(frozen=True)
class RankEndsAccount:
    """`kills` are the ranks that a signal ended; `first` is the rank that met a fault first. None if there is none."""

    kills: str | None = None
    first: str | None = None

    @property
    def cause(self) -> str | None:
        """The first fault; where it was a kill, with all kills: one reason may have ended several."""
        is_kill = self.first is not None and self.first in (self.kills or "")
        return self.kills if is_kill else self.first


def describe_rank_ends(folder: Path) -> RankEndsAccount:
    """The account of the ranks that worked in this folder."""
    ends = [end for end in read_ends(folder).ends if end.is_fault and not end.was_killed_by_agent]
    kills = [_describe(end) for end in sorted(ends, key=lambda end: end.rank) if end.signal is not None]
    causes = [end for end in ends if end.failure is None or end.failure.fault is not Fault.LOST_PEER]
    return RankEndsAccount(" ".join(kills) or None, _describe(causes[0]) if causes else None)


def _describe(end: RankEnd) -> str:
    who = f"Rank {end.rank} (process {end.pid})"
    if end.signal is not None:
        return f"{who} was killed with {_name(end.signal)}{_by_whom(end)}."
    if end.failure is None:
        return f"{who} left with exit code {end.exit_code} and said no reason; what it printed is in the log."
    return f"{who} {end.failure.fault}: {end.failure.words.rstrip('.')}."


def _name(number: int) -> str:
    known = number in signal.valid_signals() and number < signal.SIGRTMIN
    return signal.Signals(number).name if known else f"signal {number}"


def _by_whom(end: RankEnd) -> str:
    if end.is_out_of_memory:
        return f": {OUT_OF_MEMORY}"
    number = end.signal or 0
    known = next((words for one, words in BY_WHOM.items() if one == number), None)
    return f": {known}" if known is not None else ""
