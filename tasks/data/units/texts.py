"""The unit `texts`: those training texts of a chunk from which the tokenizer is learned.

Invariant: a text is among them or not by its id, its split and the share that is wanted, so neither chunks nor
processes change what is learned.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from tasks.data.database import HASH_VALUES, hash_sql
from tasks.data.rare_classes import treated_sql
from tasks.data.split import TRAIN, Assignment
from tasks.data.sql import literal
from tasks.data.tokenizer import TOKENIZER_FILE
from tasks.data.units.records import fetch_file, hashes_of, unit_name
from tasks.data.units.staging import Record, StagingArea, load_record
from tasks.data.units.workspace import Workspace

MOST_TEXTS = 200_000
MOST_BYTES = 512 << 20
BATCH_ROWS = 1024
LEARNED = "learned"


def texts_settings(assignment: Assignment, bytes_per_text: float) -> Record:
    """What the units share: `bytes_per_text` is the average over all rows."""
    num_wanted = min(MOST_TEXTS, MOST_BYTES / max(1.0, bytes_per_text))
    share = min(1.0, num_wanted / assignment.num_rows[TRAIN])
    return {"split_sql": assignment.split_sql, "share": share, "rare": list(assignment.rare)}


def choose_texts(workspace: Workspace, index: int, folder: Path) -> tuple[Record, dict[str, Path]]:
    """Choose the texts of a chunk."""
    settings, path = workspace.settings("texts"), folder / "texts.parquet"
    hashed = hash_sql(f"'tokenizer:{workspace.config.seed}:' || id")
    chosen = f"{hashed} <= {int(settings['share'] * (HASH_VALUES - 1))}"
    rows = treated_sql(f"({workspace.chunk_sql(index)})", settings["rare"], workspace.config)
    query = f"SELECT text FROM {rows} WHERE {settings['split_sql']} = {TRAIN} AND {chosen}"
    with workspace.database() as connection:
        connection.execute(f"COPY ({query}) TO {literal(str(path))} (FORMAT parquet, COMPRESSION zstd)")
    files = {_name(index): path}
    return hashes_of(files), files


def read_texts(staging: StagingArea, records: Sequence[Record]) -> Iterator[str]:
    """The texts of all chunks in their order. Raises `CorruptObjectError` for a file that is not what was kept."""
    for index, record in enumerate(records):
        with pq.ParquetFile(fetch_file(staging, unit_name("texts", index), record, _name(index))) as file:
            for batch in file.iter_batches(BATCH_ROWS):
                yield from batch.column(0).to_pylist()


def keep_tokenizer(staging: StagingArea, path: Path) -> None:
    """Keep what was learned."""
    files = {TOKENIZER_FILE: path}
    staging.keep(LEARNED, hashes_of(files), files)


def fetch_tokenizer(staging: StagingArea) -> Path:
    """What was learned. Raises `CorruptObjectError` if it is not what was kept."""
    return fetch_file(staging, LEARNED, load_record(staging, LEARNED), TOKENIZER_FILE)


def _name(index: int) -> str:
    return f"texts-{index:06d}.parquet"
