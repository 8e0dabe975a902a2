"""The unit `shard`: some shards of a split, written from the parts of the buckets in which their rows are.

Invariant: which rows a shard has, and their order, follow from the order of all rows; neither chunks nor buckets show
in its bytes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from storage.datasets import SPLITS, ShardRecord, SplitRecord, dataset_key, named_by_content
from storage.errors import CorruptObjectError
from tasks.configuration.run import DataConfig
from tasks.data.rows import metadata_columns
from tasks.data.shard import ShardFile, shard_schema, whole_row_groups
from tasks.data.sources.label_registry import form_of
from tasks.data.units.bucket_files import Buckets, in_order, order_of, part_schema, read_bucket
from tasks.data.units.staging import Record, put_again
from tasks.data.units.workspace import Workspace


class Shards(NamedTuple):
    """What a unit writes: shards of a split from this number on, with these rows each."""

    split: int
    number: int
    rows: list[int]


def shard_units(num_rows: list[int], num_together: int, config: DataConfig) -> list[Shards]:
    """All shards, so many together that follow one another in a split."""
    units = []
    for split, count in enumerate(num_rows):
        rows = [min(config.shard_rows, count - first) for first in range(0, count, config.shard_rows)]
        units += [Shards(split, i, rows[i : i + num_together]) for i in range(0, len(rows), num_together)]
    return units


def shards_together(config: DataConfig, bytes_per_row: float, unit_bytes: int) -> int:
    """How many shards a unit writes, so that small ones are not outweighed by what it takes to begin a unit."""
    return max(1, int(unit_bytes / (config.shard_rows * max(1.0, bytes_per_row))))


def write_shards(workspace: Workspace, index: int, folder: Path) -> tuple[Record, dict[str, Path]]:
    """Write shards and put them into the store."""
    settings = workspace.settings("shard")
    unit = shard_units(settings["num_rows"], settings["num_together"], workspace.config)[index]
    first = unit.number * workspace.config.shard_rows
    rows = _rows(workspace, settings, unit.split, first, first + sum(unit.rows))
    schema = shard_schema(form_of(workspace.config).shard_type, workspace.config.weight is not None)
    groups = whole_row_groups(rows, workspace.config.row_group_rows, metadata_columns(workspace.config), schema)
    written, waiting = [], schema.empty_table()
    for number, num_rows in enumerate(unit.rows, unit.number):
        path = folder / f"{SPLITS[unit.split]}-{number:05d}.parquet"
        with ShardFile(path, workspace.config.row_group_rows, schema) as shard:
            # Row groups do not reach from one shard into the next.
            while shard.num_rows < num_rows and (waiting.num_rows or (waiting := next(groups, waiting)).num_rows):
                taken = waiting.slice(0, num_rows - shard.num_rows)
                shard.write(taken)
                waiting = waiting.slice(taken.num_rows)
        written.append({"shard": _put(workspace, settings["digest"], path, shard), "num_tokens": shard.num_tokens})
    return {"shards": written}, {}


def _put(workspace: Workspace, digest: str, path: Path, shard: ShardFile) -> Record:
    record = shard.record(path.name)
    record = record.model_copy(update={"name": named_by_content(path.name, record.sha256)})
    put_again(workspace.store, path, dataset_key(digest, record.name))
    path.unlink()
    return record.model_dump()


def splits_in(records: list[Record], units: list[Shards], num_rows: list[int]) -> dict[str, SplitRecord]:
    """The splits of the data set. Raises `CorruptObjectError` if rows were lost or doubled."""
    shards: dict[str, list[ShardRecord]] = {name: [] for name in SPLITS}
    num_tokens = dict.fromkeys(SPLITS, 0)
    for unit, record in zip(units, records, strict=True):
        for written in record["shards"]:
            shards[SPLITS[unit.split]].append(ShardRecord.model_validate(written["shard"]))
            num_tokens[SPLITS[unit.split]] += written["num_tokens"]
    splits = {
        name: SplitRecord(
            num_rows=sum(shard.num_rows for shard in shards[name]), num_tokens=num_tokens[name], shards=shards[name]
        )
        for name in SPLITS
    }
    require_all_rows([splits[name].num_rows for name in SPLITS], num_rows)
    return splits


def require_all_rows(found: list[int], expected: list[int]) -> None:
    """Raise `CorruptObjectError` unless each split has its rows."""
    if found == expected:
        return
    expected_and_found = ", ".join(
        f"{name} {there:,} of {wanted:,}" for name, there, wanted in zip(SPLITS, found, expected, strict=True)
    )
    raise CorruptObjectError(
        f"Rows were lost or doubled on the way from the source to the shards; rows found of those expected: "
        f"{expected_and_found}. The data set was not published. Run again; if it happens again, check this "
        "machine's memory, or a version of DuckDB or PyArrow other than those in constraints.txt."
    )


def _rows(workspace: Workspace, settings: Record, split: int, first: int, stop: int) -> Iterator[pa.Table]:
    """The rows [first, stop) of a split, in order, a bucket at a time."""
    buckets = Buckets(**settings["buckets"])
    schema = part_schema(workspace.config, settings["vocabulary_size"])
    end = 0
    for bucket in buckets.of_split(split):
        start, end = end, end + buckets.rows[bucket]
        # A bucket at an end is read once more for the neighbour: its rows are not put in order here.
        wanted = slice(max(first, start) - start, min(stop, end) - start)
        if wanted.start < wanted.stop:
            rows = read_bucket(workspace.staging, buckets, bucket, schema)
            yield in_order(rows, order_of(rows)[wanted])
