"""What was found of a checkpoint after training, in a file of its own: its evaluation, its calibration and its audit.

Invariant: a file that is not as it was written counts as none, and its result is computed again.
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


def calibration_key(path: str) -> str:
    """Key of the calibration of the checkpoint in the folder `path`."""
    return f"{path.replace('/checkpoints/', '/calibrations/')}.json"


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
    return _of_these_weights(find_result(store, evaluation_key(checkpoint.path)), checkpoint)


def find_calibration(store: Store, checkpoint: CheckpointRecord | None) -> dict[str, Any] | None:
    """The temperature of a checkpoint and what it does, or None; its fields: `training.metrics.calibration`.

    None too for a run that was evaluated by a version without it: `holdfast evaluate` makes it.
    """
    if checkpoint is None:
        return None
    return _of_these_weights(find_result(store, calibration_key(checkpoint.path)), checkpoint)


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


def _of_these_weights(result: dict[str, Any] | None, checkpoint: CheckpointRecord) -> dict[str, Any] | None:
    return result if result is not None and result["weights_sha256"] == checkpoint.weights_sha256 else None
