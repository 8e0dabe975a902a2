"""From the address a user types to the store behind it.

Invariant: opening writes nothing; `check_writable` is what tries.
"""

import uuid
from pathlib import Path

from storage.errors import ConfigurationError, ObjectExistsError, StoreError
from storage.objects.local_store import LocalStore
from storage.objects.s3.address import SCHEME as S3_SCHEME
from storage.objects.store import Store

RUNS_FOLDER = "runs"


def open_store(address: str, cache: Path | None = None) -> Store:
    """The store at a folder's path, or at `s3://bucket/prefix`.

    A store in a bucket keeps copies of what it fetches in the folder `cache`, or below the system's folder for
    temporary files. Raises `ConfigurationError` for an address of another kind.
    """
    scheme, separator, _ = address.partition("://")
    if separator and scheme == S3_SCHEME:
        # boto3 takes longer to import than all of this package: commands on a folder do without it.
        from storage.objects.s3.store import open_s3_store

        return open_s3_store(address, cache)
    if separator:
        raise ConfigurationError(
            f"store = {address!r}: {scheme}:// stores are not supported by this version. "
            "Give s3://bucket/prefix, or a folder, for instance on a network file system that all machines mount."
        )
    return LocalStore(path_of(address))


def path_of(text: str) -> Path:
    """A path as a user types it, `~` expanded. Raises `ConfigurationError` if there is no such home."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigurationError(
            f"{text} stands for a folder in a user's home that is not known here. Write the path without ~."
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
            f"The store {store.address} does not honour put-if-absent, on which the manifest rests: a second put of "
            "one key replaced the first. Use another store; of those that speak S3, one that honours "
            "`If-None-Match: *` as AWS and Ceph do, and a bucket that keeps no versions."
        )
    finally:
        store.delete(key)


def run_address(store: Store, run: str) -> str:
    """What `holdfast status` and `holdfast verify` take in place of a configuration file."""
    return f"{store.address}/{RUNS_FOLDER}/{run}"


def find_run_address(text: str) -> tuple[Store, str] | None:
    """The store and the run's name behind an address as `run_address` gives it, or None if it has another form."""
    store_address, separator, run = text.rstrip("/").rpartition(f"/{RUNS_FOLDER}/")
    if not separator or "/" in run or not run:
        return None
    return open_store(store_address), run
