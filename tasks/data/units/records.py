"""The names of units, the records of all units of a stage, and the files that a record states the hashes of.

Invariant: a unit is known by its stage and its number. A file's content is not used unless it is what was kept.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from storage.errors import CorruptObjectError
from storage.objects.digests import sha256_of_file
from tasks.data.units.staging import Record, StagingArea, load_record

READING_THREADS = 8
HASHES = "sha256"


def unit_name(stage: str, index: int) -> str:
    """The name of a unit's record."""
    return f"{stage}-{index:06d}"


def find_records(staging: StagingArea, stage: str, num_units: int) -> list[Record | None]:
    """The records of a stage's units, None for one that is not done."""
    with ThreadPoolExecutor(READING_THREADS, thread_name_prefix="records") as pool:
        return list(pool.map(lambda index: staging.find(unit_name(stage, index)), range(num_units)))


def read_records(staging: StagingArea, stage: str, num_units: int) -> list[Record]:
    """The records of a stage's units, all of which are done. Raises `ObjectMissingError` for one that is not there."""
    with ThreadPoolExecutor(READING_THREADS, thread_name_prefix="records") as pool:
        return list(pool.map(lambda index: load_record(staging, unit_name(stage, index)), range(num_units)))


def hashes_of(files: Mapping[str, Path]) -> Record:
    """What the record of a unit has, so that `fetch_file` can check whether these files are what was kept."""
    return {HASHES: {name: sha256_of_file(path) for name, path in files.items()}}


def fetch_file(staging: StagingArea, unit: str, record: Record, name: str) -> Path:
    """A file of a unit with this name and record, on this machine.

    Raises `CorruptObjectError` if it is not what was kept.
    """
    path = staging.fetch(name)
    if sha256_of_file(path) != record[HASHES][name]:
        raise damaged(staging, unit, name)
    return path


def damaged(staging: StagingArea, unit: str, name: str) -> CorruptObjectError:
    """The error where a file of a unit is not what was kept."""
    return CorruptObjectError(
        f"What was prepared of the source is damaged: {staging.address_of(name)} is not what was written there. "
        f"Nothing was published. Delete {staging.address_of(unit)}.json and run again: this part "
        "is then prepared again from the source, and nothing else."
    )
