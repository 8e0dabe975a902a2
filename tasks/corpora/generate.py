"""Makes a corpus to try Holdfast on: Parquet files of either of the two jobs' schemas, of any size.

Row i is the same in every corpus of one job and seed, however many rows it has. Memory does not grow with the number of
rows. Invariant: a `.parquet` file that stands in the folder is whole, and nothing that stood there before is touched.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from storage.errors import ConfigurationError, StoreError
from tasks.corpora import policy as corpus_policy
from tasks.corpora import quality as corpus_quality
from training.configuration import ConfigModel

Job = Literal["policy", "quality"]

BLOCK_ROWS = 2048
MIN_FILES = 4
# Files of one corpus come from several writers in real life: they differ in the size of their row groups.
ROW_GROUP_ROWS = (2048, 1500, 1024, 600)


class CorpusConfig(ConfigModel):
    """What decides about the bytes of a corpus, beside its job and its number of rows."""

    seed: int = Field(0, ge=0, lt=2**63, description="Seed of every row.")
    rows_per_file: int = Field(24 * BLOCK_ROWS, ge=1, description="Rows of a file at most; four files at least.")


DEFAULTS = CorpusConfig()


def generate_corpus(
    out: Path,
    job: Job,
    num_rows: int,
    config: CorpusConfig = DEFAULTS,
    on_rows: Callable[[int], None] | None = None,
) -> list[Path]:
    """Write a corpus into the new or empty folder `out` and return its files, in row order.

    `on_rows` is called after each block with the number of rows that were added. The bytes depend on the arguments and
    on the versions of NumPy and pyarrow alone. Raises `ConfigurationError` before anything is written when an argument
    is wrong or the folder is in use, `StoreError` when writing fails.
    """
    _check_arguments(job, num_rows)
    _prepare_folder(out)
    paths = []
    for file_index, (first, end) in enumerate(_file_ranges(num_rows, config.rows_per_file)):
        path = out / f"part-{file_index:05d}.parquet"
        try:
            tables = _draw_rows(job, config.seed, first, end)
            _write_file(path, ROW_GROUP_ROWS[file_index % len(ROW_GROUP_ROWS)], tables, on_rows)
        except OSError as error:
            raise StoreError(
                f"Cannot write {path}: {error.strerror or error}. The files before it are whole. "
                "Free space on the disk, or give a folder on another one; either way it must be a new or empty folder."
            ) from error
        paths.append(path)
    return paths


def _check_arguments(job: str, num_rows: int) -> None:
    if job not in get_args(Job):
        raise ConfigurationError(f"A corpus is of the job {' or '.join(get_args(Job))}; found {job!r}.")
    if num_rows < 1:
        raise ConfigurationError(f"A corpus has at least one row; found {num_rows} rows.")


def _prepare_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        in_use = any(out.iterdir())
    except OSError as error:
        raise ConfigurationError(
            f"The corpus needs a new or empty folder; {out} cannot be one: {error.strerror}. Name another one."
        ) from error
    if in_use:
        raise ConfigurationError(
            f"The corpus needs a new or empty folder; {out} has files in it already, and they stay as they are. "
            "Name another folder."
        )


def _file_ranges(num_rows: int, rows_per_file: int) -> Iterator[tuple[int, int]]:
    """First row and end of each file; a small corpus, too, is cut into several files."""
    rows_per_file = min(rows_per_file, -(-num_rows // MIN_FILES))
    for first in range(0, num_rows, rows_per_file):
        yield first, min(first + rows_per_file, num_rows)


def _draw_rows(job: Job, seed: int, first: int, end: int) -> Iterator[pa.Table]:
    """Rows [first, end) in chunks of at most one block. A block that two files share is drawn for each of them."""
    draw_block = {"policy": corpus_policy.draw_block, "quality": corpus_quality.draw_block}[job]
    for block_index in range(first // BLOCK_ROWS, -(-end // BLOCK_ROWS)):
        block_first = block_index * BLOCK_ROWS
        start, stop = max(first - block_first, 0), min(end - block_first, BLOCK_ROWS)
        yield draw_block(seed, block_index, BLOCK_ROWS).slice(start, stop - start)


def _write_file(
    path: Path, row_group_rows: int, tables: Iterator[pa.Table], on_rows: Callable[[int], None] | None
) -> None:
    """The file gets its name when it is whole: whatever stops the writing leaves no Parquet that is cut off."""
    partial = path.with_suffix(".partial")
    try:
        _write_tables(partial, row_group_rows, tables, on_rows)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _write_tables(
    path: Path, row_group_rows: int, tables: Iterator[pa.Table], on_rows: Callable[[int], None] | None
) -> None:
    """Everything that decides about the bytes is set here, not left to the library's defaults."""
    first = next(tables)
    with pq.ParquetWriter(
        path, first.schema, version="2.6", compression="zstd", compression_level=1, data_page_version="1.0"
    ) as writer:
        table: pa.Table | None = first
        while table is not None:
            writer.write_table(table, row_group_size=row_group_rows)
            if on_rows is not None:
                on_rows(table.num_rows)
            table = next(tables, None)
