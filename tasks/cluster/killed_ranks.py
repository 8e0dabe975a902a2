"""Which ranks of this machine were killed, by the last words of their launcher.

A rank that is killed reports nothing, and those that waited for it report a broken connection. Invariant: only what
torchrun has seen is reported, from its own log; where it was killed too, nothing is.
"""

import re
import signal
from pathlib import Path

# As torchrun's summary of failures, at the end of its log, has a process that a signal ended:
#   rank      : 1 (local_rank: 1)
#   exitcode  : -9 (pid: 25559)  (SIGKILL)
KILLED = re.compile(r"^ +rank +: (?P<rank>\d+) .*\n +exitcode +: -(?P<signal>\d+) \(pid: (?P<pid>\d+)\)", re.MULTILINE)
# Of a summary of all ranks of a machine.
LAST_BYTES = 64 * 1024
BY_WHOM = {
    signal.SIGKILL: "by a person, or by the kernel when the machine, or this container, had no memory left (`dmesg`)",
    signal.SIGSEGV: "it read memory that is not its own: an error in a library or a driver, or a faulty memory module",
    signal.SIGBUS: "the shared memory in /dev/shm, or the disk under a mapped file, is full",
}


def describe_killed_ranks(log: Path) -> str | None:
    """Each rank that a signal ended, in a sentence; None if torchrun's log has none, or there is no log."""
    if not log.is_file():
        return None
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LAST_BYTES))
        last_words = file.read().decode(errors="replace")
    killed = {int(found["rank"]): found for found in KILLED.finditer(last_words)}
    return " ".join(_describe(killed[rank]) for rank in sorted(killed)) or None


def _describe(found: "re.Match[str]") -> str:
    number = int(found["signal"])
    known = signal.Signals(number) if number in signal.valid_signals() and number < signal.SIGRTMIN else None
    name = known.name if known else f"signal {number}"
    by_whom = f": {BY_WHOM[known]}" if known in BY_WHOM else ""
    return f"Rank {found['rank']} (process {found['pid']}) was killed with {name}{by_whom}."
