"""Content hashes and the one JSON form they are taken over.

Invariant: equal values give equal bytes, on every machine and in every version of Python.
"""

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from storage.errors import IncompatibleRunError

CHUNK_BYTES = 8 * 2**20


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no spaces, no NaN (RFC 8259 has none): the bytes a digest is taken over."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256_of_bytes(data: bytes) -> str:
    """SHA-256 as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def sha256_of_file(path: Path) -> str:
    """SHA-256 of a file's content as 64 hex digits, read in constant memory.

    In chunks much larger than those of `hashlib.file_digest`: a checkpoint that was just written comes from the device.
    """
    with path.open("rb", buffering=0) as file:
        return sha256_of_stream(file)


def sha256_of_stream(
    file: io.RawIOBase | io.BufferedReader, note: Callable[[int], object] = lambda num_bytes: None
) -> str:
    """SHA-256 of what is left to read of an open file. `note` is called with the bytes of each chunk."""
    digest, chunk = hashlib.sha256(), memoryview(bytearray(CHUNK_BYTES))
    while count := file.readinto(chunk):
        digest.update(chunk[:count])
        note(count)
    return digest.hexdigest()


def seal(content: Mapping[str, Any], field: str) -> bytes:
    """A JSON object with the digest of all the rest in `field`, for `is_sealed`."""
    return canonical_json({**content, field: digest_of(content)})


def is_sealed(data: bytes, field: str) -> bool:
    """Whether it is a JSON object in which `field` is the digest of all the rest.

    Byte for byte, since a number may be written in several ways.
    """
    try:
        content = json.loads(data)
        is_canonical = canonical_json(content) == data
        return is_canonical and content.pop(field) == digest_of(content)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def require_format(data: bytes, supported: int, what: str) -> None:
    """Raise `IncompatibleRunError` if JSON states another format than `supported`: its writer knew other things."""
    try:
        stated = json.loads(data)["format"]
    except (ValueError, KeyError, TypeError):
        return  # damaged, which the caller finds out and reports
    if isinstance(stated, int) and stated != supported:
        raise IncompatibleRunError(
            f"{what} has format {stated}, this version of Holdfast reads format {supported}. "
            "Use the version that wrote it. Nothing was changed."
        )


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON-able value, independent of the order of its keys."""
    return sha256_of_bytes(canonical_json(value))
