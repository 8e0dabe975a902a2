"""Small run states and checkpoints made by hand, for tests of what is durable."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from storage.checkpoints.checkpoints import (
    STATE_NAME,
    CheckpointIndex,
    FoundCheckpoint,
    checkpoint_path,
    list_complete_checkpoints,
    load_checkpoint,
    put_checkpoint_file,
    write_index,
)
from storage.objects.digests import sha256_of_bytes
from storage.objects.history import HistoryPart
from storage.objects.store import Store
from storage.runs.code_version import CodeVersion
from storage.runs.holders import this_process
from storage.runs.ledger import LEDGER_SCHEMA, LedgerHeader, LedgerPart, write_ledger_part
from storage.runs.manifest import Manifest
from storage.runs.run_records import FrozenFile
from storage.runs.run_state import CheckpointRecord, Lease, RunState
from storage.runs.transitions import take_lease
from tasks.configuration.run import RetryConfig

BATCH_SIZE = 8
# For verdicts without waiting: what cannot be read at one look is so for good, what differs is read again at once.
QUICK = RetryConfig(store_seconds=0, reread_seconds=0)


def make_run(store: Store, run: str = "run", steps: int = 100) -> Manifest:
    """A run that was created and not yet trained."""
    manifest = Manifest(store, run)
    manifest.create(
        RunState(
            run=run, created_at=1.0, config={}, dataset_digest="d" * 64, dataset_sha256="s" * 64, steps_total=steps
        )
    )
    return manifest


def lease_run(manifest: Manifest, ranks: int = 1) -> int:
    """Take the lease for this process; its fence."""
    lease = manifest.commit("segment began", take_lease(this_process(), ranks)).state.lease
    assert lease is not None
    return lease.fence


def lease_at(fence: int, first_step: int = 0) -> Lease:
    """A lease of this process, as a store does not know it."""
    holder, at = this_process(), {"first_step": first_step, "planned_steps": 100, "taken_at": 1.0}
    return Lease.model_validate({"fence": fence, "holder": holder, "world_size": 1, **at})


def make_checkpoint(
    store: Store,
    folder: Path,
    step: int,
    fence: int,
    run: str = "run",
    value: float | None = None,
    validated_step: int | None = None,
    versions: dict[str, str] | None = None,
    history: HistoryPart | None = None,
    best_step: int = 0,
    frozen: Sequence[FrozenFile] = (),
    holdfast: CodeVersion | None = None,
    state: Mapping[str, Any] | None = None,
) -> FoundCheckpoint:
    """A complete checkpoint of a model of two tensors; all values are `value`, or the step.

    With a `validated_step` it knows of one validation, made there, whose macro-F1 is a thousandth of that step, and of
    a best one at `best_step`. What was before stands in the part `history`. Entries of `state` stand in its state.json
    in place of these.
    """
    # A store may keep the very file that it is given: each checkpoint has files of its own.
    folder = folder / f"{step}-{fence}"
    folder.mkdir(parents=True, exist_ok=True)
    weights = np.full((16, 4), step if value is None else value, dtype=np.float32)
    files = {
        "model.safetensors": save({"weight": weights, "bias": weights[0].copy()}),
        "optimizer.safetensors": save({"exp_avg.weight": weights}),
        STATE_NAME: json.dumps(
            {"step": step, **_validation_at(validated_step, history, best_step), **(state or {})}
        ).encode(),
    }
    path = checkpoint_path(run, step, fence)
    index = CheckpointIndex(
        run=run,
        fence=fence,
        step=step,
        cursor=step * BATCH_SIZE,
        dataset_digest="d" * 64,
        versions=versions or {},
        holdfast=holdfast,
        ledger=_write_empty_ledger(store, folder, run, step, fence),
        files={
            name: put_checkpoint_file(store, f"{path}/{name}", memoryview(data), folder / name)
            for name, data in files.items()
        },
        frozen=list(frozen),
    )
    return write_index(store, index)


def put_frozen(store: Store, folder: Path, run: str = "run") -> FrozenFile:
    """A file of a run's first weights that its checkpoints name and do not have."""
    folder.mkdir(parents=True, exist_ok=True)
    data = save({"embeddings": np.arange(12, dtype=np.float32).reshape(3, 4)})
    key = f"runs/{run}/start/0123/frozen.safetensors"
    put_checkpoint_file(store, key, memoryview(data), folder / "frozen.part")
    return FrozenFile(key=key, num_bytes=len(data), sha256=sha256_of_bytes(data))


def _validation_at(step: int | None, earlier: HistoryPart | None, best_step: int) -> dict[str, Any]:
    history: dict[str, Any] = {"loss": [], "gradient_norm": [], "validation": []}
    before = {"earlier": earlier.model_dump(mode="json")} if earlier else {}
    state: dict[str, Any] = {"validated_step": step, "best": None, "history": history | before}
    state["validations_without_better"] = 0
    if step is None:
        return state
    validation = {"step": step, "metrics": {"loss": 0.5, "macro_f1": step / 1000}}
    return state | {
        "best": {"metric": "macro_f1", "value": 1.0, "step": best_step},
        "history": history | {"validation": [validation]} | before,
    }


def _write_empty_ledger(store: Store, folder: Path, run: str, step: int, fence: int) -> LedgerPart:
    header = LedgerHeader(
        run=run, fence=fence, first_step=0, end_step=step, world_size=1, dataset_digest="d" * 64, previous=None
    )
    return write_ledger_part(store, header, LEDGER_SCHEMA.empty_table(), folder)


def find_complete_checkpoints(store: Store, run: str, fence: int) -> list[FoundCheckpoint]:
    """The complete checkpoints of a segment, newest first; each must have an index."""
    return [load_checkpoint(store, path) for _, path in list_complete_checkpoints(store, run, fence)]


def record_of(found: FoundCheckpoint) -> CheckpointRecord:
    """How the manifest names a checkpoint, but for the hash of its weights."""
    return CheckpointRecord(
        step=found.index.step,
        path=found.path,
        digest=found.digest,
        weights_sha256="1" * 64,
        num_bytes=found.index.num_bytes,
        fence=found.index.fence,
        promoted_at=1.0,
    )
