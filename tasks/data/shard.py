"""Samples into shards: one row per sample, in a seeded random order, in Parquet files of exact size.

Invariant: the order of the rows and every byte of every shard depend on the data and the configuration alone, not on
threads, memory or the order in which DuckDB hands rows out; a row's place is the MD5 of the seed and its id.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from storage.datasets import MISSING_INDEX, SPLITS, UNSEEN_INDEX, FileRecord, NumericColumn, SplitRecord, dataset_key
from storage.errors import CorruptObjectError, ObjectExistsError
from storage.objects.digests import sha256_of_file
from storage.objects.store import Store
from tasks.configuration import DataConfig
from tasks.data.progress import OnProgress
from tasks.data.sources.columns import literal
from tasks.data.sources.rules import kept_tokens_sql, too_long
from tasks.data.tokenizer import encode_texts

BATCH_ROWS = 4096
NUM_EXAMPLES = 3


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=False))


SHARD_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("label", pa.int32(), nullable=False),
        pa.field("tokens", _list_of(pa.int32()), nullable=False),
        pa.field("length", pa.int32(), nullable=False),  # number of tokens: known without reading them
        pa.field("numeric", _list_of(pa.float32()), nullable=False),
        pa.field("missing", _list_of(pa.float32()), nullable=False),
        pa.field("categorical", _list_of(pa.int32()), nullable=False),
    ]
)


def prepared_sql(config: DataConfig, classes: list[str], numeric: list[NumericColumn]) -> str:
    """SQL of every sample as training will see it, in no particular order; raw text is still text."""
    listed = ", ".join(literal(name) for name in classes)
    scaled = [_scaled_sql(i, column) for i, column in enumerate(numeric)]
    missing = [f"(n{i} IS NULL)::INTEGER" for i in range(len(numeric))]
    indices = [
        f"CASE WHEN c{i} IS NULL THEN {MISSING_INDEX} ELSE coalesce(v{i}.index, {UNSEEN_INDEX}) END"
        for i in range(len(config.categorical))
    ]
    joins = " ".join(f"LEFT JOIN vocabulary{i} v{i} ON v{i}.value = c{i}" for i in range(len(indices)))
    body = "text" if config.text else f"CAST(({kept_tokens_sql(config)})[1:{config.max_tokens}] AS INTEGER[]) AS tokens"
    return (
        f"SELECT split, id, (list_position([{listed}], label) - 1)::INTEGER AS label, {body}, "
        f"CAST([{', '.join(scaled)}] AS FLOAT[]) AS numeric, CAST([{', '.join(missing)}] AS FLOAT[]) AS missing, "
        f"CAST([{', '.join(indices)}] AS INTEGER[]) AS categorical FROM dealt {joins}"
    )


def stage_tokens(
    connection: duckdb.DuckDBPyConnection,
    query: str,
    tokenizer: Tokenizer,
    config: DataConfig,
    path: Path,
    num_rows: int,
    on_progress: OnProgress | None = None,
) -> None:
    """Write the rows of `prepared_sql` with tokens in place of text. Raises `ContractError` for rows too long."""
    examples: list[str] = []
    num_long = num_done = 0
    reader = connection.sql(query).to_arrow_reader(BATCH_ROWS)
    text_index = reader.schema.get_field_index("text")
    schema = reader.schema.set(text_index, pa.field("tokens", pa.list_(pa.int32())))
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in reader:
            tokens = encode_texts(tokenizer, batch.column(text_index).to_pylist())
            if config.too_long == "truncate":
                tokens = pc.list_slice(tokens, 0, config.max_tokens)
            else:
                long_rows = _long_rows(batch, tokens, config.max_tokens)
                num_long += len(long_rows)
                examples += long_rows[: NUM_EXAMPLES - len(examples)]
            columns = [tokens if i == text_index else column for i, column in enumerate(batch.columns)]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            num_done += batch.num_rows
            if on_progress is not None:
                on_progress("tokenise", num_done / num_rows)
    if num_long:
        raise too_long(config, f"{num_long:,} of {num_rows:,} rows are longer: {', '.join(examples)}")


def ordered_sql(relation: str, seed: int) -> str:
    """SQL of the rows split by split, each in its seeded random order; the id decides where two hashes meet."""
    return (
        "SELECT split, id, label, tokens, numeric, missing, categorical "
        f"FROM ({relation}) ORDER BY split, md5_number_lower('order:{seed}:' || id), id"
    )


def write_shards(
    reader: pa.RecordBatchReader,
    store: Store,
    digest: str,
    config: DataConfig,
    folder: Path,
    num_rows: list[int],
    on_progress: OnProgress | None = None,
) -> dict[str, SplitRecord]:
    """Cut ordered rows into shards and put each into the store; only one is on local disk at a time."""
    writer = _ShardWriter(store, digest, folder)
    expected, num_done = sum(num_rows), 0
    groups_per_shard = config.shard_rows // config.row_group_rows
    for split_index, group in _row_groups(reader, config.row_group_rows):
        writer.add(SPLITS[split_index], group, groups_per_shard)
        num_done += group.num_rows
        if on_progress is not None:
            on_progress("shard", num_done / expected)
    writer.finish_shard()
    splits = {
        name: SplitRecord(
            num_rows=sum(shard.num_rows for shard in writer.shards[name]),
            num_tokens=writer.num_tokens[name],
            shards=writer.shards[name],
        )
        for name in SPLITS
    }
    found = [splits[name].num_rows for name in SPLITS]
    if found != num_rows:
        expected_and_found = ", ".join(
            f"{name} {there:,} of {wanted:,}" for name, there, wanted in zip(SPLITS, found, num_rows, strict=True)
        )
        raise CorruptObjectError(
            f"Rows were lost or doubled on the way from the database to the shards; rows found of those expected: "
            f"{expected_and_found}. The data set was not published. Run again; if it happens again, check this "
            "machine's memory, or a version of DuckDB or PyArrow other than those in constraints.txt."
        )
    return splits


def put_again(store: Store, path: Path, key: str, sha256: str) -> None:
    """Put a file where an interrupted preparation may have left one: an equal one stays, any other is replaced.

    Nothing is deleted that is right, so two preparations of the same data set at the same time do not disturb each
    other.
    """
    try:
        store.put_file(path, key)
    except ObjectExistsError:
        if sha256_of_file(store.fetch(key)) != sha256:
            store.delete(key)
            store.put_file(path, key)


@dataclass
class _ShardWriter:
    """Writes row groups into shards; a shard that is full goes into the store."""

    store: Store
    digest: str
    folder: Path
    split: str = ""
    writer: pq.ParquetWriter | None = None
    path: Path = Path()
    num_groups: int = 0
    num_rows: int = 0
    shards: dict[str, list[FileRecord]] = field(default_factory=lambda: {name: [] for name in SPLITS})
    num_tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))

    def add(self, split: str, group: pa.Table, groups_per_shard: int) -> None:
        if self.writer is not None and (split != self.split or self.num_groups == groups_per_shard):
            self.finish_shard()
        if self.writer is None:
            self._start_shard(split)
        assert self.writer is not None
        self.writer.write_table(group, row_group_size=group.num_rows)
        self.num_groups += 1
        self.num_rows += group.num_rows
        self.num_tokens[split] += len(group.column("tokens").chunk(0).flatten())

    def finish_shard(self) -> None:
        if self.writer is None:
            return
        self.writer.close()
        self.writer = None
        sha256 = sha256_of_file(self.path)
        num_bytes = self.path.stat().st_size
        put_again(self.store, self.path, dataset_key(self.digest, self.path.name), sha256)
        self.path.unlink()
        record = FileRecord(name=self.path.name, num_rows=self.num_rows, num_bytes=num_bytes, sha256=sha256)
        self.shards[self.split].append(record)

    def _start_shard(self, split: str) -> None:
        self.split, self.num_groups, self.num_rows = split, 0, 0
        self.path = self.folder / f"{split}-{len(self.shards[split]):05d}.parquet"
        # Checksums: a bit that flips later is noticed when the page is read, not trained on.
        self.writer = pq.ParquetWriter(self.path, SHARD_SCHEMA, compression="zstd", write_page_checksum=True)


def _scaled_sql(index: int, column: NumericColumn) -> str:
    # A number in quotes is read to the last bit; without them DuckDB would take it for a decimal first.
    median, mean, deviation = (
        f"'{value!r}'::DOUBLE" for value in (column.median, column.mean, column.standard_deviation)
    )
    return f"(coalesce(n{index}, {median}) - {mean}) / {deviation}"


def _row_groups(reader: pa.RecordBatchReader, row_group_rows: int) -> Iterator[tuple[int, pa.Table]]:
    """The reader's rows in groups of exactly that many, but the last of each split."""
    waiting: list[pa.Table] = []
    num_waiting, split = 0, 0
    for batch in reader:
        for part_split, part in _parts(batch):
            if part_split != split and waiting:
                yield split, _shard_table(waiting)
                waiting, num_waiting = [], 0
            split = part_split
            waiting.append(part)
            num_waiting += part.num_rows
            if num_waiting < row_group_rows:
                continue
            table = pa.concat_tables(waiting)
            whole = num_waiting - num_waiting % row_group_rows
            for start in range(0, whole, row_group_rows):
                yield split, _shard_table([table.slice(start, row_group_rows)])
            waiting, num_waiting = [table.slice(whole)] if whole < num_waiting else [], num_waiting - whole
    if waiting:
        yield split, _shard_table(waiting)


def _parts(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.Table]]:
    """A batch of ordered rows, cut where the split changes."""
    splits = batch.column("split").to_numpy()
    table = pa.Table.from_batches([batch])
    start = 0
    for split in range(len(SPLITS)):
        stop = int(splits.searchsorted(split, side="right"))
        if stop > start:
            yield split, table.slice(start, stop - start)
        start = stop


def _shard_table(tables: list[pa.Table]) -> pa.Table:
    """One contiguous row group: how the rows arrived must not show in the file's bytes."""
    table = pa.concat_tables(tables).combine_chunks()
    table = table.append_column("length", pc.list_value_length(table.column("tokens")))
    columns = [_column(table.column(part.name).chunk(0), part.type) for part in SHARD_SCHEMA]
    return pa.Table.from_arrays(columns, schema=SHARD_SCHEMA)


def _column(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_list(kind):
        return array.cast(kind)
    offsets = pc.subtract(array.offsets, array.offsets[0])
    return pa.ListArray.from_arrays(offsets, array.flatten().cast(kind.value_type), type=kind)


def _long_rows(batch: pa.RecordBatch, tokens: pa.ListArray, max_tokens: int) -> list[str]:
    lengths = pc.list_value_length(tokens)
    long = pc.indices_nonzero(pc.greater(lengths, max_tokens)).to_pylist()
    ids = batch.column("id")
    return [f"id {ids[i].as_py()!r} has {lengths[i].as_py():,} tokens" for i in long]
