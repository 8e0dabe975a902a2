"""What the files of a data set's source looked like when they were hashed, kept in the store beside all data sets.

So a machine that has never seen the source finds by one listing which files are unchanged, and reads none of them.
Invariant: it decides only whether a file is hashed again. Losing it costs time, and another source of the same data set
replaces it.
"""

import json
from collections.abc import Sequence
from typing import Any

from storage.errors import ObjectMissingError
from storage.objects.digests import is_sealed, seal
from storage.objects.store import Store
from tasks.data.sources.source_file import SETTLED_SECONDS, SourceFile

# By the location of a file: its entry in a listing, and then its SHA-256.
Identities = dict[str, list[Any]]
SEAL_FIELD = "seal"


def find_identities(store: Store, digest: str) -> Identities:
    """What is kept for the source of the data set with this digest; empty if nothing is, or nothing readable."""
    try:
        found = store.read(_key(digest))
    except ObjectMissingError:
        return {}
    # A damaged one would call the source changed, and end the run.
    files: Identities = json.loads(found)["files"] if is_sealed(found, SEAL_FIELD) else {}
    return files


def identities_of(files: Sequence[SourceFile], fingerprints: Sequence[str], listed_at: float) -> Identities:
    """Of files that were listed at this Unix time, and hashed afterwards. One touched just before may change unseen."""
    return {
        file.location: [*file.listed_as, sha256]
        for file, sha256 in zip(files, fingerprints, strict=True)
        if file.changed_at < listed_at - SETTLED_SECONDS
    }


def keep_identities(store: Store, digest: str, identities: Identities) -> None:
    """Keep them, unless they are there already."""
    if identities != find_identities(store, digest):
        content = {"files": dict(identities)}
        store.write(_key(digest), seal(content, SEAL_FIELD))


def _key(digest: str) -> str:
    return f"sources/{digest}.json"
