"""The names of units, and the records of all units of a stage.

Invariant: a unit is known by its stage and its number.
"""

from concurrent.futures import ThreadPoolExecutor

from tasks.data.units.area import Area, Record, load_record

READING_THREADS = 8


def unit_name(stage: str, index: int) -> str:
    """The name of a unit's record."""
    return f"{stage}-{index:06d}"


def find_records(area: Area, stage: str, num_units: int) -> list[Record | None]:
    """The records of a stage's units, None for one that is not done."""
    with ThreadPoolExecutor(READING_THREADS, thread_name_prefix="records") as pool:
        return list(pool.map(lambda index: area.find(unit_name(stage, index)), range(num_units)))


def read_records(area: Area, stage: str, num_units: int) -> list[Record]:
    """The records of a stage's units, all of which are done. Raises `ObjectMissingError` for one that is not there."""
    with ThreadPoolExecutor(READING_THREADS, thread_name_prefix="records") as pool:
        return list(pool.map(lambda index: load_record(area, unit_name(stage, index)), range(num_units)))
