"""Whether two runs consumed the same samples, step by step and microbatch by microbatch, by their ledgers.

Invariant: parts are compared by what stands in them, not by how they were cut: an interrupted run has other parts.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from storage.errors import CorruptObjectError, ObjectUnreadableError
from storage.objects.store import Store
from storage.runs.ledger import LedgerPart, walk_ledger
from tasks.data.database import explained_errors, open_database, parquet_sql

# Rows that only one of the two has stand beside NULL, which is distinct from every value.
DIFFERENCE_SQL = """
    SELECT count(DISTINCT step), min(step)
    FROM {ours} AS ours FULL JOIN {theirs} AS theirs USING (step, microbatch)
    WHERE ours."rows" IS DISTINCT FROM theirs."rows" OR ours.ids_md5 IS DISTINCT FROM theirs.ids_md5
"""


@dataclass(frozen=True)
class LedgerDifference:
    """Steps whose samples are not the same; `problem` is why the ledgers could not be compared, if so."""

    num_steps: int = 0
    first_step: int | None = None
    problem: str | None = None

    @property
    def is_none(self) -> bool:
        """Whether both ledgers were read and are the same."""
        return self.num_steps == 0 and self.problem is None


def compare_ledgers(
    store: Store, ours: LedgerPart | None, theirs: LedgerPart | None, memory_limit: str, scratch: Path
) -> LedgerDifference:
    """Compare the chains that end with two parts, in at most `memory_limit` ('2GB') and beyond it in `scratch`."""
    if ours is None or theirs is None:
        return LedgerDifference(problem="there is no ledger")
    try:
        query = DIFFERENCE_SQL.format(ours=_rows_sql(store, ours), theirs=_rows_sql(store, theirs))
    except (CorruptObjectError, ObjectUnreadableError) as error:
        return LedgerDifference(problem=str(error))
    scratch.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=scratch) as folder,
        explained_errors(memory_limit, scratch),
        open_database(memory_limit, Path(folder)) as database,
    ):
        row = database.execute(query).fetchone()
    assert row is not None, "an aggregate has a row"
    return LedgerDifference(num_steps=row[0], first_step=row[1])


def _rows_sql(store: Store, head: LedgerPart) -> str:
    return parquet_sql([path for _, path, _ in walk_ledger(store, head)])
