"""Where an exported model comes from: run, checkpoint, data, ledger, software; and how good it was found to be.

Invariant: whatever stands here was read from the store and hashed on the way, or stands in the run's manifest.
"""

import json
from importlib.metadata import version
from typing import Any

from storage.checkpoints.checkpoints import STATE_NAME, FoundCheckpoint, read_checkpoint_file
from storage.checkpoints.results import find_evaluation
from storage.datasets import DatasetManifest
from storage.objects.addresses import run_address
from storage.objects.store import Store
from storage.runs.run_state import CheckpointRecord, RunState


def describe_provenance(
    store: Store, state: RunState, record: CheckpointRecord, found: FoundCheckpoint, dataset: DatasetManifest
) -> dict[str, Any]:
    """`provenance.json`, but the hashes of the export's own files, which `files.json` has."""
    ledger = found.index.ledger
    return {
        "run": state.run,
        "address": run_address(store, state.run),
        "step": record.step,
        "steps_total": state.steps_total,
        "checkpoint": record.path,
        "checkpoint_index_sha256": record.digest,
        "weights_sha256": record.weights_sha256,
        "dataset_digest": state.dataset_digest,
        "dataset_sha256": state.dataset_sha256,
        "rows": {name: split.num_rows for name, split in dataset.splits.items()},
        "ledger_head": None if ledger is None else {"key": ledger.key, "sha256": ledger.sha256},
        "rollbacks": len(state.rollbacks),
        "changes": [change.model_dump(mode="json") for change in state.changes],
        "trained_with": found.index.versions,
        "trained_by": None if found.index.holdfast is None else found.index.holdfast.model_dump(mode="json"),
        "prepared_with": dataset.versions,
        "exported_with": {name: version(name) for name in ("holdfast", "torch", "safetensors", "tokenizers")},
    }


def describe_metrics(store: Store, record: CheckpointRecord, found: FoundCheckpoint) -> dict[str, Any]:
    """`metrics.json`: the last validation up to the checkpoint, and its evaluation on the test split if it has one."""
    # The newest validation always stands in the state itself, whatever became of the history before.
    validations = json.loads(read_checkpoint_file(store, found, STATE_NAME))["history"]["validation"]
    return {
        "step": record.step,
        "validation": validations[-1] if validations else None,
        "test": find_evaluation(store, record),
    }
