"""What a segment leaves in the store besides checkpoints: its heartbeat, and its outcome record.

Invariant: the outcome record is put once, by the first rank to report. No record means that no process lived to write
one: the segment is `lost`.
"""

from pydantic import Field, ValidationError

from storage.errors import ObjectExistsError, ObjectMissingError
from storage.objects.addresses import RUNS_FOLDER
from storage.objects.digests import canonical_json
from storage.objects.store import Store
from storage.runs.run_records import Record, ViewRecord, ViewTotals
from storage.runs.run_state import Divergence, Outcome, SaveFigures, Throughput, ValidationFigures

# In the cause that a rank gives which only lost its connection: the rank that ended first knows why.
CONNECTION_BROKE = "the connection to another rank broke"


class OutcomeRecord(Record):
    """How a segment ended, in the ranks' own words."""

    outcome: Outcome
    cause: str = ""
    is_final: bool = Field(
        False, description="The cause has to be corrected first: trying again would fail in the same way."
    )
    first_step: int
    last_step: int
    world_size: int
    seconds: float
    phases: dict[str, float] = Field(description="Seconds per phase.")
    saves: SaveFigures | None = None
    throughput: Throughput | None = None
    divergence: Divergence | None = None
    is_abandoned: bool = Field(False, description="As in the manifest's record of the segment.")
    is_hung: bool = Field(
        False,
        description="The ranks made no step for too long and were killed; their supervisor wrote this record.",
    )
    patience: int | None = Field(None, description="As in the manifest's record of the segment.")
    views: list[ViewRecord] = Field([], description="As in the manifest's record of the segment.")
    view_totals: ViewTotals | None = Field(None, description="As in the manifest's record of the segment.")
    recomputing_helps: bool = Field(False, description="A device had no memory for what blocks keep.")


class Heartbeat(Record):
    """Rewritten every few seconds by the process that holds the lease: `beat` counts up as long as it lives."""

    beat: int
    step: int = Field(description="Last step that the ranks reported.")
    phases: dict[str, float] = Field({}, description="Seconds per phase up to then.")
    loss: float | None = Field(None, description="The last point of the loss curve.")
    samples_per_second: float | None = None
    validation: ValidationFigures | None = Field(None, description="The last one of this segment.")
    views: list[ViewRecord] = Field([], description="Of this segment so far: the first and the last ones.")
    view_totals: ViewTotals | None = Field(None, description="Of all of them.")
    written_at: float = Field(description="Unix time by the writer's clock, for people; nothing is decided by it.")


def segment_path(run: str, fence: int) -> str:
    """Key of a segment's folder."""
    return f"{RUNS_FOLDER}/{run}/segments/{fence:08d}"


def write_outcome(store: Store, run: str, fence: int, record: OutcomeRecord) -> bool:
    """Put the outcome unless another rank was quicker; whether it was ours."""
    try:
        store.write_if_absent(
            f"{segment_path(run, fence)}/outcome.json", canonical_json(record.model_dump(mode="json"))
        )
    except ObjectExistsError:
        return False
    return True


def find_outcome(store: Store, run: str, fence: int) -> OutcomeRecord | None:
    """The segment's outcome, or None if none was written, or it cannot be read."""
    try:
        return OutcomeRecord.model_validate_json(store.read(f"{segment_path(run, fence)}/outcome.json"))
    except (ObjectMissingError, ValidationError):
        return None


def write_heartbeat(store: Store, run: str, fence: int, heartbeat: Heartbeat) -> None:
    """Show that the lease's holder lives."""
    store.write(_heartbeat_key(run, fence), canonical_json(heartbeat.model_dump(mode="json")))


def find_beat_bytes(store: Store, run: str, fence: int) -> bytes | None:
    """The last sign of life as it was written, also by another version; None if there is none."""
    try:
        return store.read(_heartbeat_key(run, fence))
    except ObjectMissingError:
        return None


def find_heartbeat(store: Store, run: str, fence: int) -> Heartbeat | None:
    """The last sign of life, or None if the segment died before its first."""
    data = find_beat_bytes(store, run, fence)
    return None if data is None else parse_heartbeat(data)


def parse_heartbeat(data: bytes) -> Heartbeat | None:
    """A sign of life as it was written, or None if that cannot be read."""
    try:
        return Heartbeat.model_validate_json(data)
    except ValidationError:
        return None


def _heartbeat_key(run: str, fence: int) -> str:
    return f"{segment_path(run, fence)}/heartbeat.json"
