"""The unit `deal`: the rows of a piece as training will see them, dealt into buckets by their place in the order.

A row's place is the MD5 of the seed and its id. A bucket has the rows of one split whose places begin alike, so all
rows of a bucket stand in the order before all rows of the next one.
Invariant: the file that is left has one part for each bucket, in their order, each with the CRC-32 that its record
states. Rows are put in order when a bucket is read, with those of all pieces.
"""

import zlib
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tokenizers import Tokenizer

from storage.datasets import CategoricalColumn, NumericColumn
from tasks.configuration import DataConfig
from tasks.data.contract.rules import too_long
from tasks.data.rows import METADATA, index_categories, metadata_columns, prepared_sql
from tasks.data.split import Dealt
from tasks.data.token_lists import kept_tokens, narrow_type, take_lists
from tasks.data.tokenizer import encode_texts, load_tokenizer, shortened
from tasks.data.units.area import Record
from tasks.data.units.decoded import take_rows
from tasks.data.units.place import Place
from tasks.data.units.texts import fetch_tokenizer

BATCH_ROWS = 4096
NUM_EXAMPLES = 3
PLACE_BITS = 64
# A shard is written from several buckets: at its two ends it needs part of one, which is read twice.
BUCKETS_IN_A_SHARD = 1


@dataclass(frozen=True)
class DealSettings:
    """What the units share."""

    split_sql: str
    classes: list[str]
    numeric: list[NumericColumn]
    categorical: list[CategoricalColumn]
    bucket_bits: list[int]  # of each split: its buckets are the values of so many first bits of a place

    def as_record(self) -> Record:
        """JSON-able."""
        columns = {name: [column.model_dump() for column in getattr(self, name)] for name in ("numeric", "categorical")}
        return {"split_sql": self.split_sql, "classes": self.classes, "bucket_bits": self.bucket_bits} | columns

    @classmethod
    def from_record(cls, record: Record) -> "DealSettings":
        """As `as_record` gave it."""
        return cls(
            record["split_sql"],
            record["classes"],
            [NumericColumn.model_validate(column) for column in record["numeric"]],
            [CategoricalColumn.model_validate(column) for column in record["categorical"]],
            record["bucket_bits"],
        )


def bits_of_buckets(dealt: Dealt, config: DataConfig, bytes_per_row: float, bucket_bytes: int) -> list[int]:
    """For each split how many bits of a place say in which bucket it is, so that a bucket fits into memory."""
    largest = max(1.0, min(config.shard_rows / BUCKETS_IN_A_SHARD, bucket_bytes / max(1.0, bytes_per_row)))
    return [max(0, int(np.ceil(np.log2(max(1, num_rows) / largest)))) for num_rows in dealt.num_rows]


def deal(place: Place, index: int, folder: Path) -> tuple[Record, dict[str, Path]]:
    """Deal the rows of a piece."""
    settings = DealSettings.from_record(place.settings("deal"))
    decoded = take_rows(place, index)
    tokenizer = load_tokenizer(fetch_tokenizer(place.area)) if place.config.text else None
    too_long_rows: Record = {"rows": 0, "examples": []}
    with place.database() as connection:
        if decoded is not None:
            rows = _with_decoded(connection, settings, decoded, place.config)
        else:
            connection.execute(
                f"CREATE TEMP VIEW dealt AS SELECT *, {settings.split_sql} AS split FROM ({place.piece_sql(index)})"
            )
            prepared = prepared_sql(place.config, settings.classes, settings.numeric)
            reader = connection.sql(prepared).to_arrow_reader(BATCH_ROWS)
            rows, too_long_rows = _read(reader, tokenizer, settings.categorical, place.config)
    path = folder / "parts"
    record = {"too_long": too_long_rows, "parts": write_parts(rows, settings.bucket_bits, path)}
    return record, {parts_name(index): path}


def part_schema(config: DataConfig, vocabulary_size: int) -> pa.Schema:
    """The columns of a row in a part."""
    tokens = pa.list_(narrow_type(vocabulary_size))
    metadata = [(name, METADATA[kind]) for kind, names in metadata_columns(config).items() for name in names]
    return pa.schema(
        [("id", pa.string()), ("label", pa.int32()), ("tokens", tokens), *metadata, ("place", pa.uint64())]
    )


def parts_name(index: int) -> str:
    """The name of the file with a piece's parts."""
    return f"deal-{index:06d}.parts"


def require_short_enough(records: list[Record], num_rows: int, config: DataConfig) -> None:
    """Raise `ContractError` if a piece had rows that are too long."""
    num_long = sum(record["too_long"]["rows"] for record in records)
    if num_long:
        examples = [shown for record in records for shown in record["too_long"]["examples"]][:NUM_EXAMPLES]
        raise too_long(config, f"{num_long:,} of {num_rows:,} rows are longer: {', '.join(examples)}")


def write_parts(rows: pa.Table, bucket_bits: list[int], path: Path) -> dict[str, list[int]]:
    """Write rows, a part for each bucket that has any: its number, rows, end in the file and CRC-32.

    Buckets are numbered through all splits. `rows` has the columns of `part_schema`, and `split`.
    """
    parts: dict[str, list[int]] = {"bucket": [], "rows": [], "end": [], "crc": []}
    buckets = _buckets_of(rows.column("split").to_numpy(), rows.column("place").to_numpy(), bucket_bits)
    dealt = in_order(rows.drop_columns(["split"]), np.argsort(buckets, kind="stable"))
    edges = np.cumsum([0, *np.bincount(buckets)]).tolist()
    with path.open("xb") as file:
        for bucket, (begin, end) in enumerate(pairwise(edges)):
            if begin == end:
                continue
            (part,) = dealt.slice(begin, end - begin).to_batches()
            # Neither compressed, since it is read once more, nor with a schema, since there are very many of them.
            data = part.serialize()
            file.write(data)
            for name, value in zip(parts, (bucket, end - begin, file.tell(), zlib.crc32(data)), strict=True):
                parts[name].append(value)
    return parts


def _buckets_of(
    splits: NDArray[np.int32], places: NDArray[np.uint64], bucket_bits: list[int]
) -> NDArray[np.uint16 | np.uint32]:
    """The bucket of each row."""
    *firsts, num_buckets = np.cumsum([0, *(1 << bits for bits in bucket_bits)]).tolist()
    # A number may not be shifted by all of its bits.
    shifts = np.array([PLACE_BITS - max(1, bits) for bits in bucket_bits], np.uint64)
    within = (places >> shifts[splits]) * np.array([bits > 0 for bits in bucket_bits])[splits]
    buckets: NDArray[np.uint64] = np.array(firsts, np.uint64)[splits] + within
    # Numbers of 16 bits are sorted by counting them.
    return buckets.astype(np.uint16 if num_buckets <= 1 << 16 else np.uint32)


def order_of(rows: pa.Table) -> NDArray[np.int64]:
    """Rows by place, and, where two hashes meet, by id."""
    places = rows.column("place").to_numpy()
    order = np.argsort(places)
    found = places[order]
    if not np.any(found[1:] == found[:-1]):
        return order
    by_both = pc.sort_indices(rows.select(["place", "id"]), sort_keys=[("place", "ascending"), ("id", "ascending")])
    return np.from_dlpack(by_both).astype(np.int64)


def in_order(rows: pa.Table, order: NDArray[np.int64]) -> pa.Table:
    """These rows in this order, each column in one piece."""
    columns = [_in_order(column.combine_chunks(), order) for column in rows.columns]
    return pa.Table.from_arrays(columns, names=rows.schema.names)


def _in_order(column: pa.Array, order: NDArray[np.int64]) -> pa.Array:
    return take_lists(column, order) if pa.types.is_list(column.type) else column.take(pa.array(order))


def _dealt_columns(config: DataConfig) -> list[str]:
    """What `write_parts` takes."""
    return ["split", *part_schema(config, config.vocabulary_size).names]


def _with_decoded(
    connection: duckdb.DuckDBPyConnection, settings: DealSettings, decoded: pa.Table, config: DataConfig
) -> pa.Table:
    """The rows that `check` has left, as training will see them."""
    kept = decoded.select(["id", "place", "tokens"])
    number = pa.array(np.arange(decoded.num_rows))
    connection.register("decoded", decoded.drop_columns(kept.column_names).append_column("number", number))
    split = "" if "split" in decoded.column_names else f", {settings.split_sql} AS split"
    connection.execute(f"CREATE TEMP VIEW dealt AS SELECT *{split} FROM decoded")
    rows = connection.sql(prepared_sql(config, settings.classes, settings.numeric, has_body=False)).to_arrow_table()
    numbers = rows.column("number").to_numpy()
    if not np.array_equal(numbers, number):  # which DuckDB does not promise
        rows = in_order(rows, np.argsort(numbers))
    indices = index_categories(settings.categorical, decoded.column)
    for name, column in chain(zip(kept.column_names, kept.columns, strict=True), indices.items()):
        rows = rows.append_column(name, column)
    return rows.select(_dealt_columns(config))


def _read(
    reader: pa.RecordBatchReader,
    tokenizer: Tokenizer | None,
    categories: list[CategoricalColumn],
    config: DataConfig,
) -> tuple[pa.Table, Record]:
    """All rows with the tokens that training will see, and those that have too many of them."""
    names, vocabulary_size = _dealt_columns(config), config.vocabulary_size
    kind = narrow_type(vocabulary_size if tokenizer is None else tokenizer.get_vocab_size())
    too_long_rows: Record = {"rows": 0, "examples": []}
    tables = []
    # A piece may have no row at all.
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
    texts = batch.column("text").to_pylist()
    if config.too_long == "truncate":
        return shortened(tokenizer, texts, config.max_tokens)
    tokens = encode_texts(tokenizer, texts)
    found = _long_rows(batch, tokens, config.max_tokens)
    too_long_rows["rows"] += len(found)
    too_long_rows["examples"] += found[: NUM_EXAMPLES - len(too_long_rows["examples"])]
    return tokens


def _long_rows(batch: pa.RecordBatch, tokens: pa.ListArray, max_tokens: int) -> list[str]:
    lengths = pc.list_value_length(tokens)
    long = pc.indices_nonzero(pc.greater(lengths, max_tokens)).to_pylist()
    ids = batch.column("id")
    return [f"id {ids[i].as_py()!r} has {lengths[i].as_py():,} tokens" for i in long]
