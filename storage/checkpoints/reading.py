"""Notes of processes that read a checkpoint beside the segment that trains; checked before one is deleted.

Invariant: the note is written before the manifest is asked whether the checkpoint is kept, and a process that deletes
has committed that it is not kept before asking for notes. So either the reader sees that it is gone and chooses again,
or its files stay until it was read.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pydantic import Field, ValidationError

from storage.errors import ConflictError, ObjectMissingError, StoreError
from storage.objects.addresses import RUNS_FOLDER
from storage.objects.digests import canonical_json
from storage.objects.store import Store
from storage.runs.holders import is_alive, this_process
from storage.runs.manifest import Manifest
from storage.runs.run_records import Record
from storage.runs.run_state import CheckpointRecord, Holder, RunState

# A reader that died on another machine holds files back no longer. Reading a model takes seconds to minutes.
HELD_SECONDS = 3600.0
MAX_CHOICES = 10


class ReaderNote(Record):
    """A process reads the checkpoint in the folder `path`."""

    path: str
    holder: Holder
    until: float = Field(description="Unix time; then the note counts no more. Clocks may differ by minutes.")


@contextmanager
def holding(
    manifest: Manifest, choose: Callable[[RunState], CheckpointRecord]
) -> Iterator[tuple[RunState, CheckpointRecord]]:
    """Choose one of a run's kept checkpoints; its files stay for the block, for `HELD_SECONDS` at most.

    The manifest is read, not written, and no lease is needed. Raises what `choose` raises, `RunMissingError` and
    `StoreError`; `ConflictError` if each checkpoint that was chosen was dropped at that very moment.
    """
    for _ in range(MAX_CHOICES):
        record = choose(manifest.load_head().state)
        note = _write_note(manifest, record.path)
        try:
            state = manifest.load_head().state
            if any(kept.path == record.path for kept in state.kept):
                yield state, record
                return
        finally:
            with suppress(StoreError):  # it ends by itself
                manifest.store.delete(note)
    raise ConflictError(
        f"Run {manifest.run!r} dropped each checkpoint that was to be read, {MAX_CHOICES} times. Retry."
    )


def find_held(store: Store, run: str) -> frozenset[str]:
    """Folders of the checkpoints that are being read. Notes of readers that are gone are deleted."""
    held = set()
    for key in list(store.list_keys(_prefix(run))):
        try:
            note = ReaderNote.model_validate_json(store.read(key))
        except ObjectMissingError:
            continue  # read to its end just now
        except ValidationError:
            note = None
        if note is None or note.until < time.time() or is_alive(note.holder) is False:
            store.delete(key)
        else:
            held.add(note.path)
    return frozenset(held)


def _write_note(manifest: Manifest, path: str) -> str:
    """Its key."""
    note = ReaderNote(path=path, holder=this_process(), until=time.time() + HELD_SECONDS)
    key = f"{_prefix(manifest.run)}{uuid.uuid4().hex}.json"
    manifest.store.write(key, canonical_json(note.model_dump(mode="json")))
    return key


def _prefix(run: str) -> str:
    return f"{RUNS_FOLDER}/{run}/readers/"
