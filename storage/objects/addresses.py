"""From the address a user types to the store behind it.

Invariant: opening writes nothing; `check_writable` is what tries.
"""

import re
import uuid
from pathlib import Path

from storage.errors import ConfigurationError, ObjectExistsError, StoreError
from storage.lazy_imports import lazy_imports
from storage.objects.local_store import LocalStore
from storage.objects.s3.address import SCHEME as S3_SCHEME
from storage.objects.s3.address import parse_s3_address, without_secrets
from storage.objects.store import Store

# boto3 takes longer to import than all of this package: commands on a folder do without it.
with lazy_imports():
    import storage.objects.s3.store as s3_store

RUNS_FOLDER = "runs"
# A run's name is a folder's name, in a file system and in a bucket.
RUN_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
MAX_RUN_NAME_CHARACTERS = 100
RUN_NAME_WORDS = (
    f"1 to {MAX_RUN_NAME_CHARACTERS} letters, digits, `.`, `_` and `-`, the first one a letter or a digit: the name "
    "alone, without a path"
)
# What stands before a colon at the beginning of a URL (RFC 3986, 3.1); a single letter is a drive elsewhere, no scheme.
SCHEME_PATTERN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")


def open_store(address: str, cache: Path | None = None) -> Store:
    """The store at a folder's path, or at `s3://bucket/prefix`.

    A store in a bucket keeps copies of what it fetches in the folder `cache`, or below the system's folder for
    temporary files. Raises `ConfigurationError` for an address of another kind.
    """
    if _require_scheme(address) is None:
        return LocalStore(path_of(address))
    return s3_store.open_s3_store(address, cache)


def find_store_address(address: str) -> str:
    """The address of the store that `open_store` would open. Raises what it raises for an address of another kind."""
    if _require_scheme(address) is None:
        return LocalStore(path_of(address)).address
    return str(parse_s3_address(address))


def _require_scheme(address: str) -> str | None:
    """What `find_scheme` finds. Raises `ConfigurationError` if it is neither None nor that of a bucket."""
    scheme = find_scheme(address)
    if scheme is None or address.startswith(f"{S3_SCHEME}://"):
        return scheme
    shown = without_secrets(address)
    raise ConfigurationError(
        f"store = {shown!r}: expected s3://bucket/prefix, or the path of a folder, for instance on a network file "
        f"system that all machines mount. Found an address that begins with {scheme}:, which this version does not "
        f"support in this form. If it is a folder's path, write ./{shown}."
    )


def find_scheme(address: str) -> str | None:
    """What stands before the colon in an address that begins like a URL, or None for the path of a folder."""
    found = SCHEME_PATTERN.match(address)
    return found[1] if found else None


def path_of(text: str) -> Path:
    """A path as a user types it, `~` expanded. Raises `ConfigurationError` if there is no such home."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigurationError(
            f"{text}: no user of that name is known on this machine. Write the path without ~."
        ) from error


def check_writable(store: Store) -> None:
    """Try the two writes that everything rests on. Raises `StoreError` if the store cannot be written or lock."""
    key = f"probe/{uuid.uuid4().hex}"
    store.write_if_absent(key, b"first")
    try:
        store.write_if_absent(key, b"second")
    except ObjectExistsError:
        return
    else:
        raise StoreError(
            f"The store {store.address} does not honour put-if-absent, which the manifest requires: a second put of "
            "one key replaced the first. Use another store; of those that speak S3, one that honours "
            "`If-None-Match: *` as AWS and Ceph do, and a bucket that keeps no versions."
        )
    finally:
        store.delete(key)


def run_address(store: Store, run: str) -> str:
    """What `holdfast status` and `holdfast verify` take in place of a configuration file."""
    return f"{store.address}/{RUNS_FOLDER}/{run}"


def find_run_address(text: str) -> tuple[Store, str] | None:
    """The store and the run's name behind an address as `run_address` gives it, or None if it has another form.

    The form alone: whether there is such a run is not looked at.
    """
    store_address, separator, run = text.rstrip("/").rpartition(f"/{RUNS_FOLDER}/")
    if not separator or not _is_run_name(run) or store_address.endswith(":/"):
        return None  # the last one is a bucket called `runs`
    return open_store(store_address or "/"), run


def require_run_name(run: str) -> None:
    """Raise `ConfigurationError` unless this can be the name of a run."""
    if not _is_run_name(run):
        raise ConfigurationError(f"run = {run!r} is not the name of a run: expected {RUN_NAME_WORDS}.")


def _is_run_name(text: str) -> bool:
    return len(text) <= MAX_RUN_NAME_CHARACTERS and re.fullmatch(RUN_NAME_PATTERN, text) is not None
