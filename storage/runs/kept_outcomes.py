"""An outcome record on the disk of the machine whose ranks wrote it, for a store that does not take it.

Invariant: what the store has decides; what is kept is put there only if it has no outcome of the segment. A rank keeps
its outcome before it puts it, so neither a store that is away nor a kill in that time costs one. A record counts for
the launch that it is of and no other: a fence comes a second time in a store that was removed and begun anew.
"""

import os
from pathlib import Path

from pydantic import Field, ValidationError

from storage.objects.local_store import sync_folder
from storage.objects.store import Store
from storage.runs.run_records import Record
from storage.runs.run_state import Holder
from storage.runs.segments import OutcomeRecord, find_outcome, write_outcome

KEPT_NAME = "outcome.json"


class Launch(Record):
    """One launch of a segment's ranks."""

    store: str = Field(description="Its address.")
    run: str
    fence: int
    supervisor: Holder = Field(description="The process that launched the ranks' agent.")


class KeptOutcome(Record):
    """What lies in the segment's folder."""

    launch: Launch
    outcome: OutcomeRecord


def keep_outcome(folder: Path, rank: int, launch: Launch, outcome: OutcomeRecord) -> None:
    """Keep it in the segment's folder, unless another rank of this launch has. Raises `OSError`."""
    kept = _find_kept(folder)
    if kept is not None and kept.launch == launch:
        return
    new = folder / f"outcome-{rank:04d}.new"
    with new.open("w", encoding="utf-8") as file:
        file.write(KeptOutcome(launch=launch, outcome=outcome).model_dump_json())
        file.flush()
        os.fsync(file.fileno())
    new.replace(folder / KEPT_NAME)
    sync_folder(folder)


def settle_outcome(store: Store, folder: Path, launch: Launch) -> OutcomeRecord | None:
    """The segment's outcome in the store, put there from the folder if it had none. Raises `StoreError`."""
    outcome = find_outcome(store, launch.run, launch.fence)
    kept = _find_kept(folder) if outcome is None else None
    if kept is None or kept.launch != launch:
        return outcome
    write_outcome(store, launch.run, launch.fence, kept.outcome)
    return find_outcome(store, launch.run, launch.fence)  # a rank that is not seen from here may have been quicker


def _find_kept(folder: Path) -> KeptOutcome | None:
    try:
        return KeptOutcome.model_validate_json((folder / KEPT_NAME).read_bytes())
    except (OSError, ValidationError):
        return None
