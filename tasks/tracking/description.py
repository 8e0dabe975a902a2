"""What a tracker shows of a run besides its curves: parameters, tags, status, and files that name its checkpoints.

Invariant: pure functions of the manifest's state and the store's address.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from storage.checkpoints.checkpoints import load_checkpoint
from storage.checkpoints.results import find_evaluation
from storage.errors import CorruptObjectError, ObjectUnreadableError
from storage.objects.addresses import run_address
from storage.objects.digests import canonical_json, sha256_of_bytes
from storage.objects.store import Store
from storage.runs.run_state import CheckpointRecord, RunState
from tasks.text import at_least

Status = Literal["RUNNING", "SCHEDULED", "FINISHED", "FAILED"]

PREFIX = "holdfast."
ID_TAG = f"{PREFIX}id"
VERSION_TAG = f"{PREFIX}version"
ROLLBACKS_TAG = f"{PREFIX}rollbacks"
# MLflow refuses more.
MAX_TAG_CHARACTERS = 5000
MAX_PARAMETER_CHARACTERS = 6000


def identity_of(state: RunState) -> str:
    """By which a run is found again on a server: the same wherever its store is moved to."""
    facts = {"run": state.run, "created_at": state.created_at, "dataset": state.dataset_digest}
    return sha256_of_bytes(canonical_json(facts))[:32]


def parameters_of(state: RunState) -> dict[str, str]:
    """The configuration by dotted names, as text. What is not set is left out, and so is who tracks."""
    found = _flatten(state.config, "")
    return {name: text[:MAX_PARAMETER_CHARACTERS] for name, text in found if text and not name.startswith("tracking.")}


def tags_of(store: Store, state: RunState) -> dict[str, str]:
    """Where the run is and where it stands; how each segment ended, from which step to which; each rollback."""
    tags = {
        f"{PREFIX}run": run_address(store, state.run),
        f"{PREFIX}dataset": state.dataset_digest,
        f"{PREFIX}steps_lost": at_least(str(state.steps_lost), state.steps_lost_is_least),
    }
    for segment in state.segments:
        cause = f": {segment.cause}" if segment.cause else ""
        tags[f"{PREFIX}segment.{segment.fence:05d}"] = (
            f"{segment.outcome}, steps {segment.first_step} to {segment.last_step}{cause}"
        )
    for number, record in enumerate(state.rollbacks, start=1):
        tags[f"{PREFIX}rollback.{number:03d}"] = (
            f"from step {record.diverged_step} back to step {record.resume_step}: {record.cause}"
        )
    if state.promoted is not None:
        for name, value in describe_checkpoint(store, state.promoted).items():
            tags[f"{PREFIX}resume_point.{name}"] = str(value)
    return {name: value[:MAX_TAG_CHARACTERS] for name, value in tags.items()}


def status_of(state: RunState) -> Status:
    """In MLflow's words. A run that waits to be continued is SCHEDULED."""
    if state.lease is not None:
        return "RUNNING"
    if state.is_complete:
        return "FINISHED"
    last = state.segments[-1].outcome if state.segments else None
    return "FAILED" if last in ("failed", "diverged", "lost") else "SCHEDULED"


def describe_checkpoint(store: Store, record: CheckpointRecord) -> dict[str, Any]:
    """Address and hashes of a checkpoint, JSON-able."""
    return {
        "step": record.step,
        "address": f"{store.address}/{record.path}",
        "index_sha256": record.digest,
        "weights_sha256": record.weights_sha256,
        "num_bytes": record.num_bytes,
    }


def describe_checkpoints(store: Store, state: RunState) -> bytes:
    """All that are kept, newest first, as a JSON file."""
    return _as_file([describe_checkpoint(store, record) for record in state.kept])


def describe_model(store: Store, state: RunState) -> bytes | None:
    """The model that an export takes as a JSON file: where it is, the hash of its files, its test results; or None."""
    tested = state.headline
    record = next((kept for kept in state.kept if tested is not None and kept.path == tested.path), None)
    if not state.is_complete or tested is None or record is None:
        return None
    described = describe_checkpoint(store, record)
    try:
        index = load_checkpoint(store, record.path, record.digest).index
        described["files"] = {name: file.sha256 for name, file in sorted(index.files.items())}
    except (CorruptObjectError, ObjectUnreadableError):
        pass  # `holdfast verify` and a scrub report that; the hashes above are the manifest's
    described |= {"run": state.run, "dataset_digest": state.dataset_digest, "test_metrics": tested.metrics}
    if slices := (find_evaluation(store, record) or {}).get("slices"):
        described["test_slices"] = slices
    return _as_file(described)


def _as_file(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def _flatten(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)
