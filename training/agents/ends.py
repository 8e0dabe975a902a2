"""How ranks ended: what their agent saw, and what a rank that failed says of itself.

Invariant: each file is written whole, beside the locks of the segment's folder, and is JSON.
"""

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from storage.errors import StoreRefusedError, StoreUnavailableError
from training.places import MicrobatchPlace
from training.views.lost_peer import GLOO_LOST, LostPeerError

ENDS_NAME = "rank-ends.json"
LOST_CONNECTION = (*GLOO_LOST, LostPeerError.__name__, "ncclRemoteError")
NO_MEMORY = ("OutOfMemoryError", "MemoryError", "can't allocate memory", "not enough memory")
MOST_CHARACTERS = 2000


class Fault(StrEnum):
    """What a rank that failed met, in words that follow "Rank 1"."""

    STORE_AWAY = "could not reach the store"
    REFUSED = "was refused by the store: the key is missing, wrong or over, or may not do this"
    DISK_FULL = "found a full disk"
    OUT_OF_MEMORY = "found no memory left"
    LOST_PEER = "lost its connection to another rank"
    OTHER = "failed"


class RankFailure(BaseModel):
    """What a rank raised, in its own words."""

    rank: int
    pid: int = Field(description="There may be a file of an earlier process of this rank.")
    fault: Fault
    words: str


class RankEnd(BaseModel):
    """End of one rank, as its agent saw it. Either a signal ended it, or it left with an exit code."""

    rank: int
    pid: int
    host: str
    exit_code: int | None = None
    signal: int | None = None
    is_out_of_memory: bool = False
    was_killed_by_agent: bool = False
    failure: RankFailure | None = None
    place: MicrobatchPlace | None = Field(None, description="The microbatch that it computed when a signal ended it.")
    was_joining: bool = Field(False, description="It was begun to join the others, and was in no view yet.")

    @property
    def is_fault(self) -> bool:
        return self.exit_code != 0


class RankEnds(BaseModel):
    """The ends of a node's ranks, in the order in which they came."""

    ends: list[RankEnd] = []
    deadly: str | None = Field(
        None, description="In words: the microbatch that has ended several, for which all leave."
    )


def classify(error: BaseException) -> Fault:
    """The fault behind an error, or behind its cause. What a store says counts before what broke below it."""
    chain = list(_chain(error))
    words = [f"{type(one).__name__}: {one}" for one in chain]
    if any(isinstance(one, OSError) and one.errno in (errno.ENOSPC, errno.EDQUOT) for one in chain):
        return Fault.DISK_FULL
    if any(isinstance(one, (StoreRefusedError, PermissionError)) for one in chain):
        return Fault.REFUSED
    if any(isinstance(one, StoreUnavailableError) for one in chain):
        return Fault.STORE_AWAY
    if _has(words, NO_MEMORY):
        return Fault.OUT_OF_MEMORY
    return Fault.LOST_PEER if _has(words, LOST_CONNECTION) else Fault.OTHER


def _has(texts: Iterable[str], parts: Sequence[str]) -> bool:
    return any(part in text for text in texts for part in parts)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def write_failure(folder: Path, rank: int, error: BaseException) -> None:
    """What this rank raised. Raises `OSError` where the disk does not take it."""
    words = f"{type(error).__name__}: {error}"[:MOST_CHARACTERS]
    failure = RankFailure(rank=rank, pid=os.getpid(), fault=classify(error), words=words)
    _write(_failure_file(folder, rank), failure.model_dump_json())


def find_failure(folder: Path, rank: int, pid: int) -> RankFailure | None:
    """What this process of the rank said, if it said something."""
    try:
        found = RankFailure.model_validate_json(_failure_file(folder, rank).read_bytes())
    except (OSError, ValidationError):
        return None
    return found if found.pid == pid else None


def write_ends(folder: Path, ends: RankEnds) -> None:
    """All ends so far. Raises `OSError` where the disk does not take it."""
    _write(folder / ENDS_NAME, ends.model_dump_json())


def read_ends(folder: Path) -> RankEnds:
    """The ends that the agent of this folder saw; none where it did not live to see any."""
    try:
        return RankEnds.model_validate_json((folder / ENDS_NAME).read_bytes())
    except (OSError, ValidationError):
        return RankEnds()


def _failure_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-failure-{rank:04d}.json"


def _write(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
