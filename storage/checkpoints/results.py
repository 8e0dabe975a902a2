"""What was found of a checkpoint after training, in a file of its own: its evaluation and its audit.

Invariant: a file that is not as it was written counts as none, and what it said is found out again.
"""

import json
from collections.abc import Mapping
from typing import Any

from storage.errors import ObjectMissingError
from storage.objects.digests import is_sealed, seal
from storage.objects.store import Store
from storage.runs.run_state import CheckpointRecord

SEAL_FIELD = "seal"


def evaluation_key(path: str) -> str:
    """Key of the test results of the checkpoint in the folder `path`."""
    return f"{path.replace('/checkpoints/', '/evaluations/')}.json"


def audit_key(path: str) -> str:
    """Key of what the audit found up to the checkpoint in the folder `path`."""
    return f"{path.replace('/checkpoints/', '/audits/')}.json"


def write_result(store: Store, key: str, result: Mapping[str, Any]) -> None:
    """Write or replace a result, sealed."""
    store.write(key, seal(result, SEAL_FIELD))


def find_evaluation(store: Store, checkpoint: CheckpointRecord | None) -> dict[str, Any] | None:
    """The test results of a checkpoint, or None. Not of another checkpoint of the same step."""
    if checkpoint is None:
        return None
    result = find_result(store, evaluation_key(checkpoint.path))
    return result if result is not None and result["weights_sha256"] == checkpoint.weights_sha256 else None


def find_result(store: Store, key: str) -> dict[str, Any] | None:
    """A result that was written; None if there is none, or if it is damaged."""
    try:
        data = store.read(key)
        result: dict[str, Any] = dict(json.loads(data))
    except (ObjectMissingError, ValueError, TypeError):
        return None
    # Earlier versions wrote results without a seal.
    if result.pop(SEAL_FIELD, None) is not None and not is_sealed(data, SEAL_FIELD):
        return None
    return result
