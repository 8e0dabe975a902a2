"""Notes in a segment's folder that decide nothing about the run: who asks for its end, and which flow runs began it.

Invariant: a request to stop is obeyed whatever a later version wrote into it: its key is the request. Of flow runs a
note that is missing or cannot be read is as none.
"""

from pydantic import ConfigDict, Field, ValidationError

from storage.errors import ObjectExistsError, ObjectMissingError
from storage.objects.digests import canonical_json
from storage.objects.store import Store
from storage.runs.run_records import Record
from storage.runs.segments import segment_path


class _Note(Record):
    """A later version may have written more."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class FlowRunsRecord(_Note):
    """In which flow runs of Prefect a segment was begun: its own first, then those within which that one runs."""

    ids: list[str]


class StopRecord(_Note):
    """Request that a segment saves and ends: put once, read by the supervisor of its ranks."""

    asked_by: str = Field(description="Who, and on which machine, for people.")
    asked_at: float = Field(description="Unix time by the asker's clock, for people.")
    is_handed_over: bool = Field(default=False, description="The asker goes on, in the same flow run of Prefect.")


def write_stop(store: Store, run: str, fence: int, record: StopRecord) -> bool:
    """Ask the segment to end, unless that was asked before; whether this request is the one."""
    try:
        store.write_if_absent(f"{segment_path(run, fence)}/stop.json", canonical_json(record.model_dump(mode="json")))
    except ObjectExistsError:
        return False
    return True


def find_stop(store: Store, run: str, fence: int) -> StopRecord | None:
    """The request to end, or None."""
    try:
        return StopRecord.model_validate_json(store.read(f"{segment_path(run, fence)}/stop.json"))
    except ObjectMissingError:
        return None
    except ValidationError:
        return StopRecord(asked_by="Somebody, whose request cannot be read,", asked_at=0.0)


def write_flow_runs(store: Store, run: str, fence: int, record: FlowRunsRecord) -> None:
    """Record which flow runs began the segment, for processes that find it."""
    store.write(f"{segment_path(run, fence)}/flow-runs.json", canonical_json(record.model_dump(mode="json")))


def find_flow_runs(store: Store, run: str, fence: int) -> list[str]:
    """Who began the segment, as far as that is known."""
    try:
        return FlowRunsRecord.model_validate_json(store.read(f"{segment_path(run, fence)}/flow-runs.json")).ids
    except (ObjectMissingError, ValidationError):
        return []
