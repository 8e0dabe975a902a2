"""The ended segments of a long run: a generation holds the recent ones, parts of the history those before.

Invariant: what a generation leaves out is, entry for entry, in the parts that it names; they are in the store before
it is. A state in memory has all segments.
"""

from functools import lru_cache

from storage.objects.history import HistoryPart, read_history_part, seal_history
from storage.objects.store import Store
from storage.runs.run_state import RunState, SegmentRecord

SEGMENTS_IN_PART = 32
KIND = "segments"


def with_earlier_segments(state: RunState, store: Store) -> RunState:
    """A state as a generation has it, with the segments of its parts. Raises `CorruptObjectError`."""
    return state.model_copy(update={"segments": [*_read_segments(store, state.earlier_segments), *state.segments]})


def without_earlier_segments(state: RunState, store: Store) -> RunState:
    """A state as a generation is to have it: all but the last segments are in parts, which are put here if need be."""
    part = state.earlier_segments
    earlier = _read_segments(store, part)
    if state.segments[: len(earlier)] != earlier:  # an old record was corrected
        part, earlier = None, []
    recent = state.segments[len(earlier) :]
    while len(recent) >= 2 * SEGMENTS_IN_PART:
        records, recent = recent[:SEGMENTS_IN_PART], recent[SEGMENTS_IN_PART:]
        sealed = seal_history(state.run, KIND, {KIND: [record.model_dump(mode="json") for record in records]}, part)
        sealed.write(store)
        part = sealed.part
    return state.model_copy(update={"earlier_segments": part, "segments": recent})


def _read_segments(store: Store, newest: HistoryPart | None) -> list[SegmentRecord]:
    """Those of a part and of all before it, oldest first."""
    found: list[tuple[SegmentRecord, ...]] = []
    part = newest
    while part is not None:
        part, records = _read_part(store, part)
        found.append(records)
    return [record for records in reversed(found) for record in records]


# A part never changes, and a supervisor reads the manifest several times for each checkpoint.
@lru_cache(maxsize=1024)
def _read_part(store: Store, part: HistoryPart) -> tuple[HistoryPart | None, tuple[SegmentRecord, ...]]:
    content = read_history_part(store, part)
    return content.previous, tuple(SegmentRecord.model_validate(entry) for entry in content.entries[KIND])
