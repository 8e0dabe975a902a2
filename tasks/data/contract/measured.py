"""Counts of the rows of a row range that break each rule of the contract, with examples, and a sample of its rows.

Invariant: what is measured of row ranges adds up to what would be measured of the whole file, wherever it is cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby

import duckdb
import pyarrow as pa

from tasks.configuration.run import DataConfig
from tasks.data.contract.rules import kept_tokens_sql, row_rules
from tasks.data.contract.sampled import LENGTH, sampled_sql
from tasks.data.database import HASH_VALUES, order_key_sql
from tasks.data.rule import Rule
from tasks.data.sources.columns import RowRange, SourceTable
from tasks.data.sources.encoding import require_utf8
from tasks.data.sources.messages import REWRITE, broken_contract
from tasks.data.sources.samples_sql import samples_sql
from tasks.data.sql import only_row
from tasks.data.token_lists import good_tokens, kept_tokens, narrow_type

# On average, of all files together. What one row in a thousand has is in them with a probability of 99.99 %.
SAMPLE_ROWS = 10_000
NUM_EXAMPLES = 3
BATCH_ROWS = 4096


@dataclass(frozen=True)
class Measured:
    """What was found in some rows of a file; `counts` and `examples` are by rule, in the order of `row_rules`."""

    file_index: int
    num_rows: int
    num_text_bytes: int  # 0 for token input
    counts: list[int]
    examples: list[list[str]]


def measure(
    connection: duckdb.DuckDBPyConnection, table: SourceTable, config: DataConfig, row_range: RowRange, columns: str
) -> tuple[Measured, pa.Table, pa.Table | None]:
    """Measure a row range; what was found, the sample of its rows, and all its rows with the tokens that training sees.

    The sample has `LENGTH`, of a text in characters, of token input in tokens, and `sampled_columns`. The rows have
    `columns` and `tokens`; they are None where a row may break a rule about tokens. Raises `ContractError` for a file
    that cannot be read to its end.
    """
    rules, rows = row_rules(config), samples_sql(table, config, row_range)
    try:
        narrow = samples_sql(table, config, row_range, is_narrow=True)
        good = _read_good_tokens(connection, narrow, columns, config) if config.tokens else None
        if good is None:
            length = "length(text)" if config.text else f"len({kept_tokens_sql(config)})"
            num_rows, num_text_bytes, found = _count(connection, f"({rows})", rules, config)
            sample = _sample(connection, f"({rows})", order_key_sql(config), length, table, config)
        else:
            others = [rule for rule in rules if rule.column not in _token_columns(config)]
            connection.register("read", good)
            num_rows, num_text_bytes, found = _count(connection, "read", others, config)
            sample = _sample(connection, "read", "order_key", "len(tokens)", table, config)
            connection.unregister("read")
        counts = [found.get(rule.name, 0) for rule in rules]
        examples = [_examples(connection, rows, rule, config) if found.get(rule.name) else [] for rule in rules]
    except duckdb.OutOfMemoryException:
        raise
    except duckdb.Error as error:
        file = table.files[row_range.file_index]
        require_utf8(file, table, config)
        raise broken_contract(
            f"The file {file.location} cannot be read to its end.",
            "a complete Parquet file",
            str(error).partition("\n")[0].replace(str(file.rows), file.location),
            REWRITE,
        ) from error
    return Measured(row_range.file_index, num_rows, num_text_bytes, counts, examples), sample, good


def _sample(
    connection: duckdb.DuckDBPyConnection,
    rows: str,
    order_key: str,
    length: str,
    table: SourceTable,
    config: DataConfig,
) -> pa.Table:
    """The sample's rows: a row is in it or not by its key in the order alone, so its size is right on average."""
    share = min(1.0, SAMPLE_ROWS / table.num_rows_total)
    chosen = f"{order_key} <= {int(share * (HASH_VALUES - 1))}"
    columns = f"({length})::BIGINT AS {LENGTH}{sampled_sql(config)}"
    return connection.sql(f"SELECT {columns} FROM {rows} WHERE {chosen}").to_arrow_table()


def _count(
    connection: duckdb.DuckDBPyConnection, rows: str, rules: Sequence[Rule], config: DataConfig
) -> tuple[int, int, dict[str, int]]:
    """The number of rows, of bytes of text, and of rows that break each of these rules."""
    figures = ["count(*)", "coalesce(sum(strlen(text)), 0)::BIGINT" if config.text else "0"]
    figures += [f"count(*) FILTER (WHERE {rule.broken})" for rule in rules]
    num_rows, num_bytes, *counts = only_row(connection, f"SELECT {', '.join(figures)} FROM {rows}")
    return num_rows, num_bytes, dict(zip((rule.name for rule in rules), counts, strict=True))


def _read_good_tokens(
    connection: duckdb.DuckDBPyConnection, rows: str, columns: str, config: DataConfig
) -> pa.Table | None:
    """All rows, if it is plain that none breaks any rule about tokens; None if these have to be asked.

    Of good data, which is nearly all there is, this reads the rows once, and looks at their tokens as one long array.
    What does not fit into the fewer bytes of these rows' tokens and masks is null, and no good token.
    """
    mask, kind = ", mask" if config.attention_mask else "", narrow_type(config.vocabulary_size)
    reader = connection.sql(f"SELECT {columns}, tokens{mask} FROM ({rows})").to_arrow_reader(BATCH_ROWS)
    read = []
    # There may be no row at all.
    for batch in chain([pa.RecordBatch.from_pylist([], reader.schema)], reader):
        tokens = good_tokens(
            batch.column("tokens"),
            batch.column("mask") if mask else None,
            config.vocabulary_size,
            config.max_tokens if config.too_long == "error" else None,
        )
        if tokens is None:
            reader.close()
            return None
        kept = kept_tokens(tokens, None, config.max_tokens, kind)
        others = batch.drop_columns(["tokens", *(["mask"] if mask else [])])
        read.append(pa.Table.from_batches([others]).append_column("tokens", kept))
    return pa.concat_tables(read)


def add_up(measured: Sequence[Measured], rules: Sequence[Rule]) -> list[Measured]:
    """What was found in each file, of what was found in its row ranges, which stand in order."""
    return [_add_up(index, list(parts), len(rules)) for index, parts in groupby(measured, lambda part: part.file_index)]


def _add_up(file_index: int, parts: list[Measured], num_rules: int) -> Measured:
    return Measured(
        file_index,
        sum(part.num_rows for part in parts),
        sum(part.num_text_bytes for part in parts),
        [sum(part.counts[i] for part in parts) for i in range(num_rules)],
        [[shown for part in parts for shown in part.examples[i]][:NUM_EXAMPLES] for i in range(num_rules)],
    )


def _examples(connection: duckdb.DuckDBPyConnection, rows: str, rule: Rule, config: DataConfig) -> list[str]:
    shown = f"left(({rule.shown})::VARCHAR, 60)"
    query = f"SELECT source_row, id, {shown} FROM ({rows}) WHERE {rule.broken} LIMIT {NUM_EXAMPLES}"
    examples = []
    for row, id_, value in connection.execute(query).fetchall():
        where = [f"row {row}"] * (row is not None) + [f"id {id_!r}"] * bool(config.id and id_ is not None)
        examples.append(" ".join([", ".join(where)] + [f"has {value!r}"] * (value is not None)))
    return examples


def _token_columns(config: DataConfig) -> tuple[str | None, str | None]:
    return config.tokens, config.attention_mask
