"""The unit `assign`: the rows of a chunk as training will see them, assigned into buckets by their key in the order.

A row's order key is the MD5 of the seed and its id. A bucket has the rows of one split whose order keys begin alike, so
all rows of a bucket stand in the order before all rows of the next one.
Invariant: rows are put in order when a bucket is read, with those of all chunks.
"""

from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from storage.datasets import CategoricalColumn, NumericColumn
from tasks.configuration.run import DataConfig
from tasks.data.contract.rules import too_long
from tasks.data.rare_classes import treated_sql
from tasks.data.rows import index_categories, prepared_sql
from tasks.data.split import Assignment
from tasks.data.text_pairs import texts_of
from tasks.data.token_lists import kept_tokens, narrow_type
from tasks.data.tokenizer import encode_texts, load_tokenizer, shortened
from tasks.data.units.bucket_files import in_order, part_schema, parts_name, write_parts
from tasks.data.units.decoded import take_rows
from tasks.data.units.staging import Record
from tasks.data.units.texts import fetch_tokenizer
from tasks.data.units.workspace import Workspace

BATCH_ROWS = 4096
SHARED = ("split_sql", "classes", "rare", "bucket_bits", "mean_weight")
NUM_EXAMPLES = 3
# A shard is written from several buckets: at its two ends it needs part of one, which is read twice.
BUCKETS_IN_A_SHARD = 1


@dataclass(frozen=True)
class AssignSettings:
    """What the units share."""

    split_sql: str
    classes: list[str]
    numeric: list[NumericColumn]
    categorical: list[CategoricalColumn]
    rare: list[str]  # labels whose rows are left out, or are those of another class
    bucket_bits: list[int]  # of each split: its buckets are the values of so many first bits of an order key
    mean_weight: float | None  # of the training split's rows; None where rows have no weight

    def as_record(self) -> Record:
        """JSON-able."""
        columns = {name: [column.model_dump() for column in getattr(self, name)] for name in ("numeric", "categorical")}
        shared = {name: getattr(self, name) for name in SHARED}
        return shared | columns

    @classmethod
    def from_record(cls, record: Record) -> "AssignSettings":
        """The assignment that `as_record` described."""
        return cls(
            record["split_sql"],
            record["classes"],
            [NumericColumn.model_validate(column) for column in record["numeric"]],
            [CategoricalColumn.model_validate(column) for column in record["categorical"]],
            record["rare"],
            record["bucket_bits"],
            record["mean_weight"],
        )


def bits_of_buckets(assignment: Assignment, config: DataConfig, bytes_per_row: float, bucket_bytes: int) -> list[int]:
    """For each split how many bits of an order key decide in which bucket it is, so that a bucket fits into memory."""
    largest = max(1.0, min(config.shard_rows / BUCKETS_IN_A_SHARD, bucket_bytes / max(1.0, bytes_per_row)))
    return [max(0, int(np.ceil(np.log2(max(1, num_rows) / largest)))) for num_rows in assignment.num_rows]


def assign(workspace: Workspace, index: int, folder: Path) -> tuple[Record, dict[str, Path]]:
    """Assign the rows of a chunk."""
    settings = AssignSettings.from_record(workspace.settings("assign"))
    decoded = take_rows(workspace, index)
    tokenizer = load_tokenizer(fetch_tokenizer(workspace.staging)) if workspace.config.text else None
    too_long_rows: Record = {"rows": 0, "examples": []}
    with workspace.database() as connection:
        if decoded is not None:
            rows = _with_decoded(connection, settings, decoded, workspace.config)
        else:
            chunk = treated_sql(f"({workspace.chunk_sql(index)})", settings.rare, workspace.config)
            connection.execute(f"CREATE TEMP VIEW assigned AS SELECT *, {settings.split_sql} AS split FROM {chunk}")
            prepared = prepared_sql(workspace.config, settings.classes, settings.numeric, settings.mean_weight)
            reader = connection.sql(prepared).to_arrow_reader(BATCH_ROWS)
            rows, too_long_rows = _read(reader, tokenizer, settings.categorical, workspace.config)
    path = folder / "parts"
    record = {"too_long": too_long_rows, "table": write_parts(rows, settings.bucket_bits, path)}
    return record, {parts_name(index): path}


def require_short_enough(records: list[Record], num_rows: int, config: DataConfig) -> None:
    """Raise `ContractError` if a chunk had rows that are too long."""
    num_long = sum(record["too_long"]["rows"] for record in records)
    if num_long:
        examples = [shown for record in records for shown in record["too_long"]["examples"]][:NUM_EXAMPLES]
        raise too_long(config, f"{num_long:,} of {num_rows:,} rows are longer: {', '.join(examples)}")


def _assigned_columns(config: DataConfig) -> list[str]:
    """What `write_parts` takes."""
    return ["split", *part_schema(config, config.vocabulary_size).names]


def _with_decoded(
    connection: duckdb.DuckDBPyConnection, settings: AssignSettings, decoded: pa.Table, config: DataConfig
) -> pa.Table:
    """The rows that `check` has left, as training will see them."""
    kept = decoded.select(["id", "order_key", "tokens"])
    number = pa.array(np.arange(decoded.num_rows))
    connection.register("decoded", decoded.drop_columns(kept.column_names).append_column("number", number))
    split = "" if "split" in decoded.column_names else f", {settings.split_sql} AS split"
    treated = treated_sql("decoded", settings.rare, config)
    connection.execute(f"CREATE TEMP VIEW assigned AS SELECT *{split} FROM {treated}")
    prepared = prepared_sql(config, settings.classes, settings.numeric, settings.mean_weight, has_body=False)
    rows = connection.sql(prepared).to_arrow_table()
    numbers = rows.column("number").to_numpy()
    if np.any(numbers[1:] < numbers[:-1]):  # which DuckDB does not promise
        rows = in_order(rows, np.argsort(numbers))
    if rows.num_rows < decoded.num_rows:
        decoded = in_order(decoded, np.sort(numbers))
        kept = decoded.select(kept.column_names)
    indices = index_categories(settings.categorical, decoded.column)
    for name, column in chain(zip(kept.column_names, kept.columns, strict=True), indices.items()):
        rows = rows.append_column(name, column)
    return rows.select(_assigned_columns(config))


def _read(
    reader: pa.RecordBatchReader,
    tokenizer: Tokenizer | None,
    categories: list[CategoricalColumn],
    config: DataConfig,
) -> tuple[pa.Table, Record]:
    """All rows with the tokens that training will see, and those that have too many of them."""
    names, vocabulary_size = _assigned_columns(config), config.vocabulary_size
    kind = narrow_type(vocabulary_size if tokenizer is None else tokenizer.get_vocab_size())
    too_long_rows: Record = {"rows": 0, "examples": []}
    tables = []
    # A chunk may have no row at all.
    for batch in chain([pa.RecordBatch.from_pylist([], reader.schema)], reader):
        if tokenizer is None:
            mask = batch.column("mask") if config.attention_mask else None
            tokens = kept_tokens(batch.column("tokens"), mask, config.max_tokens, kind)
        else:
            tokens = _encode(tokenizer, batch, config, too_long_rows).cast(pa.list_(kind))
        columns = {"tokens": tokens, **index_categories(categories, batch.column)}
        tables.append(pa.table({name: columns[name] if name in columns else batch.column(name) for name in names}))
    return pa.concat_tables(tables), too_long_rows


def _encode(tokenizer: Tokenizer, batch: pa.RecordBatch, config: DataConfig, too_long_rows: Record) -> pa.ListArray:
    texts, is_given = texts_of(batch.column("text").to_pylist(), config.text_columns), config.tokenizer is not None
    if config.too_long == "truncate":
        return shortened(tokenizer, texts, config.max_tokens, is_given)
    tokens = encode_texts(tokenizer, texts, is_given)
    found = _long_rows(batch, tokens, config.max_tokens)
    too_long_rows["rows"] += len(found)
    too_long_rows["examples"] += found[: NUM_EXAMPLES - len(too_long_rows["examples"])]
    return tokens


def _long_rows(batch: pa.RecordBatch, tokens: pa.ListArray, max_tokens: int) -> list[str]:
    lengths = pc.list_value_length(tokens)
    long = pc.indices_nonzero(pc.greater(lengths, max_tokens)).to_pylist()
    ids = batch.column("id")
    return [f"id {ids[i].as_py()!r} has {lengths[i].as_py():,} tokens" for i in long]
