"""The contract that the user's data must keep before anything is made of them, held by Great Expectations.

DuckDB measures: how many rows of each file break each rule (`measured`), and what only all files together can tell.
Great Expectations judges these small tables, and a sample of the rows themselves as a second look.
Invariant: every row of every file was measured against every rule, and the first broken rule in order is the error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import duckdb

from storage.errors import ContractError
from tasks.configuration import DataConfig
from tasks.data.contract.judge import Columns, Failure, Judgement, Question
from tasks.data.contract.judge_process import judge
from tasks.data.contract.measured import SAMPLE_ROWS, Measured, add_up
from tasks.data.contract.repeats import Repeats
from tasks.data.contract.rules import Rule, row_rules
from tasks.data.labels import allowed_labels
from tasks.data.sources.columns import NUMBER_ROWS, SourceTable, only_row
from tasks.data.sources.messages import broken_contract

BETWEEN, LENGTHS = "ExpectColumnValuesToBeBetween", "ExpectColumnValueLengthsToBeBetween"
NOT_NULL, IN_SET = "ExpectColumnValuesToNotBeNull", "ExpectColumnValuesToBeInSet"
NONE = {"min_value": 0, "max_value": 0}

NUM_FILES_SHOWN = 5


@dataclass(frozen=True)
class Bound:
    """What must hold for all files together: a measured number that is at most `maximum`."""

    column: str
    problem: str
    expected: str
    found: str
    value: float
    maximum: float
    remedy: str

    @property
    def name(self) -> str:
        return f"{self.column}: {self.problem}"


@dataclass(frozen=True)
class Findings:
    """What was measured of all rows: of each file how many break each rule, what must hold for all, and a sample."""

    table: SourceTable
    config: DataConfig
    rules: list[Rule]
    of_each_file: list[Measured]
    bounds: list[Bound]
    sample: Columns

    @property
    def are_plain(self) -> bool:
        """Whether nothing was found that breaks the contract, so that Great Expectations has but to confirm it."""
        broken = any(count for file in self.of_each_file for count in file.counts)
        return not broken and all(bound.value <= bound.maximum for bound in self.bounds)

    def judge(self) -> dict[str, Any]:
        """All results, JSON-able and the same for the same data.

        Raises `ContractError` for the first rule that the data break.
        """
        rows = [(file.file_index, file.num_rows, *file.counts) for file in self.of_each_file]
        counts = _columns(rows, ["file_index", "rows", *(rule.name for rule in self.rules)])
        of_files = judge(counts, [(BETWEEN, rule.name, NONE) for rule in self.rules], "file_index")
        if of_files.failures:
            raise _row_error(self.table, self.rules, self.of_each_file, of_files.failures)
        of_all = _check_bounds(self.bounds)
        of_sample = _check_sample(self.sample, self.config)
        return {
            "great_expectations": version("great-expectations"),
            "rows": self.table.num_rows_total,
            "files": len(self.table.files),
            "checks": [
                {"batch": "rows of each file that break a rule", "results": of_files.results},
                {"batch": "all rows together", "results": of_all},
                {"batch": "a sample of the rows", "results": of_sample},
            ],
        }


def findings_of(
    connection: duckdb.DuckDBPyConnection,
    table: SourceTable,
    config: DataConfig,
    measured: Sequence[Measured],
    repeats: Repeats | None,
) -> Findings:
    """What Great Expectations is to judge.

    `measured` is what was found in all stretches of all files, in their order, and `repeats` which ids several rows
    have, None where ids are numbers of rows. The views `samples`, the extract of all rows, and `sampled`, the sample of
    them, must be there.
    """
    rules = row_rules(config)
    bounds = _measure_bounds(connection, table, config, repeats)
    sample = connection.execute(f"SELECT id, label, body FROM sampled LIMIT {SAMPLE_ROWS}").fetchnumpy()
    return Findings(table, config, rules, add_up(measured, rules), bounds, sample)


def _measure_bounds(
    connection: duckdb.DuckDBPyConnection, table: SourceTable, config: DataConfig, repeats: Repeats | None
) -> list[Bound]:
    bounds = [_duplicate_ids(config.id, repeats)] if config.id and repeats is not None else []
    names = [
        *((f"n{i}", c) for i, c in enumerate(config.numeric)),
        *((f"c{i}", c) for i, c in enumerate(config.categorical)),
    ]
    if names:
        nulls = ", ".join(f"count(*) FILTER (WHERE {name} IS NULL)" for name, _ in names)
        counts = only_row(connection, f"SELECT {nulls} FROM samples")
        bounds += [_missing_share(c, n, table, config) for (_, c), n in zip(names, counts, strict=True)]
    return bounds


def _duplicate_ids(column: str, repeats: Repeats) -> Bound:
    shown = ", ".join(f"{id_!r} in {num_rows} rows" for id_, num_rows in repeats.worst)
    found = f"{repeats.num_surplus:,} rows too many, for {repeats.num_ids:,} ids: {shown}"
    remedy = f"drop the repeated rows, name a column with unique ids, or {NUMBER_ROWS}"
    return Bound(column, "duplicate ids", "each id in one row of all files", found, repeats.num_surplus, 0, remedy)


def _missing_share(column: str, num_missing: int, table: SourceTable, config: DataConfig) -> Bound:
    share = num_missing / table.num_rows_total
    found = f"{num_missing:,} of {table.num_rows_total:,} rows ({share:.1%}) have none"
    remedy = "raise data.max_missing_fraction, or take the column out of the configuration"
    expected = f"at most {config.max_missing_fraction:.1%} missing values (data.max_missing_fraction)"
    return Bound(column, "missing values", expected, found, share, config.max_missing_fraction, remedy)


def _check_bounds(bounds: list[Bound]) -> list[dict[str, Any]]:
    if not bounds:
        return []
    batch = _columns([[bound.value for bound in bounds]], [bound.name for bound in bounds])
    asked = [(BETWEEN, bound.name, {"min_value": 0, "max_value": bound.maximum}) for bound in bounds]
    judged = judge(batch, asked)
    failures = judged.failures
    if failures:
        bound = bounds[failures[0].index]
        raise broken_contract(
            f"Column {bound.column!r} breaks the contract: {bound.problem}.",
            f"{bound.expected} [{failures[0].expectation}]",
            bound.found,
            bound.remedy + _others([bounds[failure.index].name for failure in failures[1:]]),
        )
    return judged.results


def _check_sample(batch: Columns, config: DataConfig) -> list[dict[str, Any]]:
    """Let Great Expectations look at rows themselves: a second pair of eyes on what the SQL has counted."""
    columns = {"id": config.id or "id", "label": config.label}
    num_rows = len(batch["id"])
    asked: list[Question] = [(NOT_NULL, name, {}) for name in ("id", "label", "body")]
    domain = allowed_labels(config)
    if domain is not None:
        asked.append((IN_SET, "label", {"value_set": domain}))
    asked.append((LENGTHS if config.text else BETWEEN, "body", {"min_value": 1}))
    judged = judge(batch, asked) if num_rows else Judgement([], [])
    if judged.failures:
        first = judged.failures[0]
        column = columns.get(first.column, config.text or config.tokens)
        raise broken_contract(
            f"Column {column!r} breaks the contract.",
            f"{first.expectation} on a sample of {num_rows:,} rows",
            f"{first.count:,} rows that do not",
            "correct these rows",
        )
    return judged.results


def _row_error(
    table: SourceTable, rules: list[Rule], of_each_file: Sequence[Measured], failures: list[Failure]
) -> ContractError:
    first = failures[0]
    rule = rules[first.index]
    counts = {int(row["file_index"]): int(row[rule.name]) for row in first.rows}
    examples = {file.file_index: "; ".join(file.examples[first.index]) for file in of_each_file}
    shown = [f"{table.files[i].name} has {counts[i]:,} ({examples[i]})" for i in sorted(counts)[:NUM_FILES_SHOWN]]
    more = f"; and {len(counts) - len(shown)} more files" if len(counts) > len(shown) else ""
    return broken_contract(
        f"Column {rule.column!r} breaks the contract: {rule.problem}.",
        f"{rule.expected} [{first.expectation}]",
        f"{sum(counts.values()):,} of {table.num_rows_total:,} rows: {'; '.join(shown)}{more}",
        rule.remedy + _others([rules[failure.index].name for failure in failures[1:]]),
    )


def _others(names: list[str]) -> str:
    return f".\n  also broken: {'; '.join(names)}" if names else ""


def _columns(rows: Sequence[Sequence[Any]], names: list[str]) -> Columns:
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
