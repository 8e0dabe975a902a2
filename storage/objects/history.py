"""What lies far back in a run, in parts that are written once: its loss curve, its validations, its ended segments.

A checkpoint's `state.json` and a generation of the manifest have what is recent, and name the newest part with its
hash; each part names the one before. So what is written at each save and each commit does not grow with the run.
Invariant: a part is in the store before anything that names it, and its key has its hash: who writes to that key
writes the same bytes. A part that nothing names, of a save or a commit that was cut off, means nothing.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from storage.errors import CorruptObjectError
from storage.objects.addresses import RUNS_FOLDER
from storage.objects.digests import canonical_json, require_format, sha256_of_bytes
from storage.objects.readable import reading
from storage.objects.store import Store

HISTORY_FORMAT = 1


class HistoryPart(BaseModel):
    """Where a part is and what it must hash to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str = Field(description="Relative to the store.")
    sha256: str
    num_bytes: int


class HistoryContent(BaseModel):
    """What a part holds: lists of entries, each list oldest first, under the names that their writer gave them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = HISTORY_FORMAT
    run: str
    previous: HistoryPart | None
    entries: dict[str, list[Any]]


@dataclass(frozen=True)
class SealedPart:
    """A part and its bytes, which are still to be put into the store."""

    part: HistoryPart
    data: bytes

    def write(self, store: Store) -> None:
        """Put the part. Again, and the same bytes, if it is there: who put it may not have lived to make it durable."""
        store.write(self.part.key, self.data)


def seal_history(run: str, kind: str, entries: Mapping[str, list[Any]], previous: HistoryPart | None) -> SealedPart:
    """The part that follows `previous`; `kind` begins its file's name, for people. Entries are JSON-able."""
    content = HistoryContent(run=run, previous=previous, entries=dict(entries))
    data = canonical_json(content.model_dump(mode="json"))
    digest = sha256_of_bytes(data)
    key = f"{RUNS_FOLDER}/{run}/history/{kind}-{digest}.json"
    return SealedPart(HistoryPart(key=key, sha256=digest, num_bytes=len(data)), data)


def read_history_part(store: Store, part: HistoryPart) -> HistoryContent:
    """A part as it was written.

    Raises `CorruptObjectError`, `ObjectUnreadableError`, or `IncompatibleRunError` if a later version wrote it.
    """
    with reading(store, part.key):
        data = store.read(part.key)
    found = sha256_of_bytes(data)
    if found != part.sha256:
        raise CorruptObjectError(
            f"{part.key} was changed after it was written: SHA-256 {part.sha256} expected, {found} found."
        )
    require_format(data, HISTORY_FORMAT, f"The part of a run's history {part.key}")
    try:
        return HistoryContent.model_validate_json(data)
    except ValidationError as error:
        raise CorruptObjectError(f"{part.key} is not a part of a run's history.") from error


def walk_history(
    store: Store, newest: HistoryPart | None, known: MutableMapping[HistoryPart, HistoryContent] | None = None
) -> Iterator[HistoryContent]:
    """The parts of a chain, the newest first. Raises `CorruptObjectError` where it breaks.

    Those that are `known`, from an earlier walk, are not read again, and those that are read are known then: a part
    never changes.
    """
    part = newest
    while part is not None:
        content = known.get(part) if known is not None else None
        if content is None:
            content = read_history_part(store, part)
            if known is not None:
                known[part] = content
        yield content
        part = content.previous
