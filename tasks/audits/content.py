"""The samples of a ledger, asked about in SQL: DuckDB over its parts and the ids of the data set.

Invariant: reads only, in bounded memory: a call looks at a range of steps, and what DuckDB has to sort or group spills
to disk.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.audits.chain import ChainPart
from tasks.audits.expectation import Expectation
from tasks.audits.samples import AuditedSamples
from tasks.audits.violations import MAX_NAMED
from tasks.data.database import parquet_sql

Microbatches = list[tuple[int, list[int]]]

# Microbatches side by side, step by step. A microbatch that is there twice makes the list longer.
COMPARE = """
    WITH found_steps AS (SELECT step, list((microbatch, rows) ORDER BY microbatch) AS microbatches FROM found GROUP BY
    step),
         due_steps AS (SELECT step, list((microbatch, rows) ORDER BY microbatch) AS microbatches FROM due GROUP BY step)
    SELECT step FROM found_steps FULL JOIN due_steps USING (step)
    WHERE found_steps.microbatches IS DISTINCT FROM due_steps.microbatches ORDER BY step
"""
# The hash of the ids that the data set has for the rows that a microbatch names, against the one that was recorded.
COMPARE_IDS = """
    WITH entries AS (SELECT number, unnest(rows) AS row, generate_subscripts(rows, 1) AS position FROM found),
         hashes AS (
            SELECT number, unhex(md5(string_agg(id, chr(31) ORDER BY position))) AS ids_md5
            FROM entries JOIN ids USING (row) GROUP BY number
         )
    SELECT step, microbatch FROM found LEFT JOIN hashes USING (number)
    WHERE found.ids_md5 IS DISTINCT FROM hashes.ids_md5 ORDER BY step, microbatch
"""
# Which epoch each use of a row belongs to. Of a batch that straddles epochs the pure function knows, by row.
USES = """
    SELECT step, row, {epoch} AS epoch FROM {entries}
    WHERE step NOT IN (SELECT step FROM straddling)
    UNION ALL
    SELECT step, row, coalesce(straddling.epoch, {epoch}) AS epoch
    FROM (
        SELECT step, row, row_number() OVER (PARTITION BY step, row) AS nth FROM {entries}
        WHERE step IN (SELECT step FROM straddling)
    ) LEFT JOIN straddling USING (step, row, nth)
"""
NOTHING = "(SELECT 0::BIGINT AS step, 0::INTEGER AS microbatch, []::BIGINT[] AS rows, ''::BLOB AS ids_md5 WHERE false)"


class LedgerContent:
    """A ledger's samples beside those of the data set."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        parts: Sequence[ChainPart],
        samples: AuditedSamples,
        expectation: Expectation,
    ) -> None:
        self._connection = connection
        self._parts = parts
        self._expectation = expectation
        self.samples = samples

    def load(self, steps: range) -> None:
        """Take these steps in hand: what the ledger has, and what is due."""
        self._connection.execute(
            "CREATE OR REPLACE TEMP TABLE found AS SELECT row_number() OVER () AS number, step, microbatch, rows, "
            f"ids_md5 FROM {self._ledger_sql(steps)}"
        )
        found = self._connection.execute("SELECT unnest(rows) AS row FROM found").fetchnumpy()["row"]
        due = self._expectation.rows(steps)
        samples = self.samples.read(np.concatenate([found, due]))
        rows, lengths = (samples.column(name).to_numpy() for name in ("row", "length"))
        due_lengths = lengths[np.searchsorted(rows, due)].astype(np.int64)
        self._connection.register("due", self._expectation.microbatches(steps, due, due_lengths))
        self._connection.register("ids", samples)

    def count_loaded(self) -> tuple[int, int]:
        """Microbatches and samples in hand."""
        (counts,) = self._fetch("SELECT count(*), coalesce(sum(len(rows)), 0)::BIGINT FROM found")
        return counts[0], counts[1]

    def find_deviating(self) -> list[int]:
        """Steps in hand whose microbatches are not the ones that are due, sample by sample."""
        return [step for (step,) in self._fetch(COMPARE)]

    def find_wrong_ids(self) -> dict[int, list[int]]:
        """Steps in hand with microbatches whose recorded ids are not those that the data set has for their rows."""
        microbatches = defaultdict(list)
        for step, microbatch in self._fetch(COMPARE_IDS):
            microbatches[step].append(microbatch)
        return dict(microbatches)

    def microbatches_of(self, step: int) -> tuple[Microbatches, Microbatches]:
        """A step's microbatches in hand: those in the ledger and those that are due."""
        query = f"SELECT microbatch, rows FROM {{table}} WHERE step = {step} ORDER BY microbatch"
        return self._fetch(query.format(table="found")), self._fetch(query.format(table="due"))

    def find_all_uses(self, steps: range) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The row of each use in these steps, and the epoch for which it was used."""
        found = self._connection.execute(f"SELECT row, epoch FROM ({self._uses_sql(steps)})").fetchnumpy()
        return found["row"], found["epoch"]

    def find_repeated(self, epoch: int, steps: range, limit: int) -> list[int]:
        """Rows that were used more than once in an epoch."""
        uses = f"SELECT row FROM ({self._uses_sql(steps)}) WHERE epoch = {epoch}"
        found = self._fetch(f"{uses} GROUP BY row HAVING count(*) > 1 ORDER BY row LIMIT {limit}")
        return [row for (row,) in found]

    def find_unused(self, epoch: int, steps: range, skipped: Sequence[int], limit: int) -> list[int]:
        """Rows that were not used in an epoch, beside those that were `skipped` on purpose."""
        uses = f"SELECT row FROM ({self._uses_sql(steps)}) WHERE epoch = {epoch} UNION ALL SELECT unnest(?)"
        all_rows = f"range({self._expectation.num_rows}) all_rows(row)"
        query = f"SELECT row FROM {all_rows} ANTI JOIN ({uses}) USING (row) ORDER BY row LIMIT {limit}"
        return [row for (row,) in self._connection.execute(query, [list(skipped)]).fetchall()]

    def find_uses(self, rows: Sequence[int], steps: range) -> dict[tuple[int, int], list[int]]:
        """(row, epoch) -> the steps that used it, one entry for each use."""
        if not rows:
            return {}
        uses = f"SELECT * FROM ({self._uses_sql(steps)}) WHERE row IN (SELECT unnest(?))"
        query = f"SELECT row, epoch, list(step ORDER BY step) FROM ({uses}) GROUP BY row, epoch"
        found = self._connection.execute(query, [list(rows)]).fetchall()
        return {(row, epoch): used for row, epoch, used in found}

    def find_strays(self) -> list[tuple[ChainPart, list[int]]]:
        """Parts that have steps other than their own, with the first of those."""
        found = []
        for link in self._parts:
            part = link.part
            query = f"SELECT DISTINCT step FROM {parquet_sql([link.path])}"
            outside = f"step < {part.first_step} OR step >= {part.end_step}"
            steps = self._fetch(f"{query} WHERE {outside} ORDER BY step LIMIT {MAX_NAMED}")
            if steps:
                found.append((link, [step for (step,) in steps]))
        return found

    def _uses_sql(self, steps: range) -> str:
        self._connection.register("straddling_rows", self._straddling_rows(steps))
        self._connection.execute(
            "CREATE OR REPLACE TEMP TABLE straddling AS SELECT step, row, epoch, "
            "row_number() OVER (PARTITION BY step, row ORDER BY epoch) AS nth FROM straddling_rows"
        )
        entries = f"(SELECT step, unnest(rows) AS row FROM {self._ledger_sql(steps)})"
        return USES.format(entries=entries, epoch=self._expectation.epoch_sql())

    def _straddling_rows(self, steps: range) -> pa.Table:
        straddling = self._expectation.straddling(steps)
        batches = [self._expectation.epochs(step) for step in straddling]
        rows, epochs = (np.concatenate([np.empty(0, np.int64), *(batch[i] for batch in batches)]) for i in (0, 1))
        numbers = np.repeat(np.array(straddling, np.int64), self._expectation.batch_size)
        return pa.table({"step": numbers, "row": rows, "epoch": epochs})

    def _ledger_sql(self, steps: range) -> str:
        """SQL of the ledger's rows of these steps, as a relation."""
        paths = list(self._paths_of(steps))
        relation = parquet_sql(paths) if paths else NOTHING
        return f"(FROM {relation} WHERE step >= {steps.start} AND step < {steps.stop})"

    def _paths_of(self, steps: range) -> Iterator[Path]:
        for link in self._parts:
            if link.part.first_step < steps.stop and steps.start < link.part.end_step:
                yield link.path

    def _fetch(self, query: str) -> list[Any]:
        return self._connection.execute(query).fetchall()
