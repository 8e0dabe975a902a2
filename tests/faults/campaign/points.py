"""The moments at which a command can be killed, found by tracing one that nothing disturbs; never listed by hand.

Invariant: every traced operation belongs to exactly one point. Operations that differ in nothing but their step, fence
or random name are one point, and the first of them is the one that is killed at.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.helpers.fault_plans import Moment

# The writes that try a store before a run begins, the copy of the source's fingerprint, and samples that a segment's
# ranks decode for each other, whichever of them comes first: nothing is lost with them.
SCRATCH = ".tmp/scratch"
FLEETING = (f"{SCRATCH}/data", f"{SCRATCH}/runs/RUN/N/samples", f"{SCRATCH}/runs/RUN/evaluation-N/samples", "probe")
# What a save that was given up left in its rank's scratch is removed with the segment's folder. Whether one was given
# up depends on the clock, and another command may have none.
LEFT_BY_SAVE = re.compile(rf"{SCRATCH}/runs/RUN/N/save-\d+/.+")
# Reports that are due by the clock: a quick command comes to none. Those of phases and checkpoints are points.
TIMED = ("stepped > _report > write", "alive > _report > write")
# What is read here decides how a run goes on; a kill at any other read is one between two writes.
WORTH_READING = ("/checkpoints/", "/ledger/")
# The parts of the work: what ranks write and read, what the command reads, commits, deletes, and everything else of it.
PHASES = ("save", "outcome", "restore", "validation", "commit", "deletion", "supervision")


@dataclass(frozen=True)
class Point:
    """A moment in a command, what it was about (the object that was being put), and the part of the work."""

    moment: Moment
    subject: str
    occurrence: int
    phase: str

    @property
    def signature(self) -> tuple[object, ...]:
        """What makes two operations of two traces the same point."""
        moment = self.moment
        what = (moment.role, moment.rank, moment.thread, moment.operation, moment.place, moment.caller)
        is_alike = moment.operation == "read" or moment.place.startswith(SCRATCH)
        is_anybodys = moment.role == "rank" and moment.rank is None
        return what if is_alike or is_anybodys else (*what, self.subject, self.occurrence)

    def __str__(self) -> str:
        who = f"{self.moment.role}" if self.moment.rank is None else f"rank {self.moment.rank}"
        about = "" if self.subject in ("", self.moment.place) else f" for {self.subject}"
        return f"{who}: {self.moment.operation} {self.moment.place}{about} ({self.moment.caller})"


def find_points(trace: Iterable[dict[str, Any]], was_killed: bool = False) -> list[Point]:
    """The points of a traced command, in the order in which it came to them.

    A command that was killed may have been putting objects then: which ones, the trace does not know, so that these
    operations would be taken for others than those of a command that puts the same. They are left out.
    """
    points: dict[tuple[object, ...], Point] = {}
    counts: Counter[tuple[object, ...]] = Counter()
    found = []
    for entries in _threads(trace):
        for transaction in _transactions(entries):
            found += _points_of(transaction, counts)
    for _, point in sorted(found, key=lambda pair: pair[0]):
        if not (was_killed and _is_of_unknown_object(point)):
            points.setdefault(point.signature, point)
    return list(points.values())


def _points_of(transaction: list[dict[str, Any]], counts: Counter[tuple[object, ...]]) -> list[tuple[int, Point]]:
    """Points with the time of each; `counts` goes on counting where the thread's last transaction ended."""
    subject = _subject_of(transaction)
    within: Counter[tuple[object, ...]] = Counter()
    makes_folder = False
    found = []
    for entry in transaction:
        role, operation, place, caller = (entry[name] for name in ("role", "operation", "place", "caller"))
        key = (entry["pid"], entry["thread"], operation, place, caller)
        counts[key] += 1
        within[key] += 1
        makes_folder |= operation == "mkdir"
        makes_folder &= operation in ("mkdir", "fsync")
        if _is_worthwhile(role, operation, place, subject) and not caller.endswith(TIMED):
            # A folder that all ranks need is made by whichever comes first.
            is_shared = makes_folder or (operation == "fsync" and _is_above(place, subject))
            who = {"rank": None if is_shared else entry["rank"], "thread": entry["thread"], "caller": caller}
            moment = Moment(role, operation, place, nth=counts[key], exact=True, **who)
            phase = phase_of(role, operation, place, subject)
            found.append((entry["at_ns"], Point(moment, subject, within[key], phase)))
    return found


def _is_of_unknown_object(point: Point) -> bool:
    return not point.subject and not point.moment.place.startswith(SCRATCH)


def _is_above(folder: str, subject: str) -> bool:
    """Whether the folder holds the one that the object is in: only who makes that one has something to sync here."""
    return folder == "." or subject.rpartition("/")[0].startswith(f"{folder}/")


def _is_worthwhile(role: str, operation: str, place: str, subject: str) -> bool:
    if place.startswith(FLEETING) or subject.startswith(FLEETING):
        return False
    if role == "command" and LEFT_BY_SAVE.fullmatch(place):
        return False
    return operation != "read" or (any(part in place for part in WORTH_READING) and not place.startswith(".tmp"))


def _threads(trace: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    threads: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for entry in trace:
        threads.setdefault((entry["pid"], entry["thread"]), []).append(entry)
    return list(threads.values())


def _transactions(entries: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Cut a thread's operations where it begins to put another object: with the next temporary file."""
    transactions: list[list[dict[str, Any]]] = [[]]
    for entry in entries:
        begins = _is_temporary(entry["place"]) and entry["operation"] in ("mkdir", "open", "link")
        if begins and _subject_of(transactions[-1]):
            transactions.append([])
        transactions[-1].append(entry)
    return transactions


def _subject_of(transaction: list[dict[str, Any]]) -> str:
    """The object that is put: the first name outside of the temporary folder that a file is given."""
    named = (entry["place"] for entry in transaction if entry["operation"] in ("link", "rename"))
    return next((place for place in named if not _is_temporary(place)), "")


def _is_temporary(place: str) -> bool:
    return place == ".tmp" or (place.startswith(".tmp/") and not place.startswith(SCRATCH))


def phase_of(role: str, operation: str, place: str, subject: str) -> str:
    """The part of the work that an operation belongs to, one of `PHASES`."""
    if operation == "read":
        return "restore" if role == "rank" else "validation"
    if role == "rank":
        is_saved = any(f"/{folder}/" in subject for folder in ("checkpoints", "ledger", "history"))
        return "save" if is_saved or "/save" in place else "outcome"
    if operation in ("unlink", "rmdir") and "/checkpoints" in place:
        return "deletion"
    return "commit" if "/manifest/" in subject or "/history/" in subject else "supervision"
