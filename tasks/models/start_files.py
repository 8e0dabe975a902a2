"""The folder of a run's first weights: their files, and start.json, which says what of them goes where.

Invariant: the files first, then the plan that has their hashes; the manifest names it when it is durable. The folder is
named by its content, so of two processes that begin one run neither changes what the other has named.
"""

import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from storage.errors import ObjectExistsError
from storage.first_weights import START_NAME, start_path
from storage.objects.digests import canonical_json, sha256_of_bytes, sha256_of_file
from storage.runs.run_records import FrozenFile, StartRecord
from tasks.data.units.staging import put_again
from tasks.run_paths import RunPaths
from training.models.correspondence import Copy

START_FORMAT = 1


def put_start(
    files: Sequence[Path],
    copies: Sequence[Copy],
    run_paths: RunPaths,
    origin: str,
    step: int,
    weights_sha256: str,
    provenance: dict[str, Any],
    frozen: Collection[Path] = (),
) -> StartRecord:
    """Put the folder into the run's store; the manifest's record of it, which names those files that are `frozen`."""
    sha256 = {path: sha256_of_file(path) for path in files}
    plan = {
        "format": START_FORMAT,
        "origin": origin,
        "provenance": provenance,
        "files": {path.name: found for path, found in sha256.items()},
        "copies": [copy.as_json() for copy in copies],
    }
    data = canonical_json(plan)
    digest = sha256_of_bytes(data)
    key = start_path(run_paths.manifest.run, digest)
    for path in files:  # an earlier attempt that was cut off, or another process, may have brought the same
        put_again(run_paths.store, path, f"{key}/{path.name}")
    with contextlib.suppress(ObjectExistsError):
        run_paths.store.write_if_absent(f"{key}/{START_NAME}", data)
    return StartRecord(
        origin=origin,
        step=step,
        weights_sha256=weights_sha256,
        path=key,
        digest=digest,
        frozen=[
            FrozenFile(key=f"{key}/{path.name}", num_bytes=path.stat().st_size, sha256=sha256[path])
            for path in files
            if path in frozen
        ],
    )
