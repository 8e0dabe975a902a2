"""Rows that break a rule of the contract, and ids that several rows have, as the one error that a person reads.

Invariant: every row of every file was counted against every rule, and the first broken rule in order is the error.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from storage.errors import ContractError
from tasks.configuration.run import DataConfig
from tasks.data.contract.measured import Measured, add_up
from tasks.data.contract.repeats import Repeats
from tasks.data.contract.rules import row_rules
from tasks.data.rule import Rule
from tasks.data.sources.columns import NUMBER_ROWS, SourceTable
from tasks.data.sources.messages import broken_contract
from tasks.text import count_of

NUM_FILES_SHOWN = 5


def require_rules_kept(
    table: SourceTable,
    config: DataConfig,
    measured: Sequence[Measured],
    repeats: Repeats | None,
    advice: Callable[[str], str | None] | None = None,
) -> None:
    """Raise `ContractError` for the first rule that the data break; it names the others that they break too.

    `measured` is what was found in all row ranges of all files, in their order, and `repeats` which ids several rows
    have, None where ids are numbers of rows. `advice` says what to do about a rule's problem where it has better words
    than the rule.
    """
    rules = row_rules(config)
    files = add_up(measured, rules)
    broken = [index for index in range(len(rules)) if any(file.counts[index] for file in files)]
    has_repeats = repeats is not None and repeats.num_surplus > 0
    names = [rules[index].name for index in broken] + [f"{config.id}: duplicate ids"] * has_repeats
    also = f".\n  also broken: {'; '.join(names[1:])}" if names[1:] else ""
    if broken:
        rule = rules[broken[0]]
        remedy = (advice(rule.problem) if advice is not None else None) or rule.remedy
        raise _row_error(table, broken[0], replace(rule, remedy=remedy + also), files)
    if repeats is not None and has_repeats:
        raise _duplicate_ids(repeats, config)


def _row_error(table: SourceTable, index: int, rule: Rule, files: Sequence[Measured]) -> ContractError:
    having = [file for file in files if file.counts[index]]
    shown = [
        f"{table.files[file.file_index].name} has {file.counts[index]:,} ({'; '.join(file.examples[index])})"
        for file in having[:NUM_FILES_SHOWN]
    ]
    more = f"; and {len(having) - len(shown)} more files" if len(having) > len(shown) else ""
    num_rows = sum(file.counts[index] for file in having)
    return broken_contract(
        f"Column {rule.column!r} breaks the contract: {rule.problem}.",
        rule.expected,
        f"{num_rows:,} of {table.num_rows_total:,} rows: {'; '.join(shown)}{more}; row 0 is the first of a file",
        rule.remedy,
    )


def _duplicate_ids(repeats: Repeats, config: DataConfig) -> ContractError:
    shown = ", ".join(f"{id_!r} in {num_rows} rows" for id_, num_rows in repeats.worst)
    return broken_contract(
        f"Column {config.id!r} breaks the contract: duplicate ids.",
        "each id in one row of all files",
        f"{count_of(repeats.num_surplus, 'row')} too many, for {count_of(repeats.num_ids, 'id')}: {shown}",
        f"drop the repeated rows, name a column with unique ids, or {NUMBER_ROWS}",
    )
