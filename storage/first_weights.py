"""The first weights of a run that begins with those of another one: a folder of the run, its start.json written last.

Invariant: the manifest has the hash of start.json, which has those of the other files.
"""

import json
from typing import Any

from storage.errors import CorruptObjectError
from storage.objects.addresses import RUNS_FOLDER
from storage.objects.digests import sha256_of_bytes
from storage.objects.store import Store

START_NAME = "start.json"
ADVICE = "Restore the file from a backup of the store, or begin a new run under another name."


def start_path(run: str, digest: str) -> str:
    """Key of the folder, which is named by its content: what another run names is never changed."""
    return f"{RUNS_FOLDER}/{run}/start/{digest[:16]}"


def read_start(store: Store, path: str, digest: str) -> dict[str, Any]:
    """Content of start.json: `files`, by name their SHA-256, and `copies`. Raises `CorruptObjectError`."""
    data = store.read(f"{path}/{START_NAME}")
    require_hash(store, f"{path}/{START_NAME}", sha256_of_bytes(data), digest)
    start: dict[str, Any] = json.loads(data)
    return start


def require_hash(store: Store, key: str, found: str, expected: str) -> None:
    """Raise `CorruptObjectError` unless the file is what was written."""
    if found != expected:
        raise CorruptObjectError(
            f"{store.address}/{key} was changed after it was written: SHA-256 {expected[:16]}... expected, "
            f"{found[:16]}... found. The run's first weights are not to be had. {ADVICE}"
        )
