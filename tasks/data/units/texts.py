"""The unit `texts`: those training texts of a piece from which the tokenizer is learned.

Invariant: a text is among them or not by its id, its split and the share that is wanted, so neither pieces nor
processes change what is learned.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from tasks.data.database import HASH_VALUES, hash_sql
from tasks.data.rare_classes import treated_sql
from tasks.data.split import TRAIN, Dealt
from tasks.data.sql import literal
from tasks.data.tokenizer import TOKENIZER_FILE
from tasks.data.units.records import fetch_file, hashes_of, unit_name
from tasks.data.units.staging import Area, Record, load_record
from tasks.data.units.workspace import Place

MOST_TEXTS = 200_000
MOST_BYTES = 512 << 20
BATCH_ROWS = 1024
LEARNED = "learned"


def texts_settings(dealt: Dealt, bytes_per_text: float) -> Record:
    """What the units share: `bytes_per_text` is the average over all rows."""
    num_wanted = min(MOST_TEXTS, MOST_BYTES / max(1.0, bytes_per_text))
    share = min(1.0, num_wanted / dealt.num_rows[TRAIN])
    return {"split_sql": dealt.split_sql, "share": share, "rare": list(dealt.rare)}


def choose_texts(place: Place, index: int, folder: Path) -> tuple[Record, dict[str, Path]]:
    """Choose the texts of a piece."""
    settings, path = place.settings("texts"), folder / "texts.parquet"
    hashed = hash_sql(f"'tokenizer:{place.config.seed}:' || id")
    chosen = f"{hashed} <= {int(settings['share'] * (HASH_VALUES - 1))}"
    rows = treated_sql(f"({place.piece_sql(index)})", settings["rare"], place.config)
    query = f"SELECT text FROM {rows} WHERE {settings['split_sql']} = {TRAIN} AND {chosen}"
    with place.database() as connection:
        connection.execute(f"COPY ({query}) TO {literal(str(path))} (FORMAT parquet, COMPRESSION zstd)")
    files = {_name(index): path}
    return hashes_of(files), files


def read_texts(area: Area, records: Sequence[Record]) -> Iterator[str]:
    """The texts of all pieces in their order. Raises `CorruptObjectError` for a file that is not what was kept."""
    for index, record in enumerate(records):
        with pq.ParquetFile(fetch_file(area, unit_name("texts", index), record, _name(index))) as file:
            for batch in file.iter_batches(BATCH_ROWS):
                yield from batch.column(0).to_pylist()


def keep_tokenizer(area: Area, path: Path) -> None:
    """Keep what was learned."""
    files = {TOKENIZER_FILE: path}
    area.keep(LEARNED, hashes_of(files), files)


def fetch_tokenizer(area: Area) -> Path:
    """What was learned. Raises `CorruptObjectError` if it is not what was kept."""
    return fetch_file(area, LEARNED, load_record(area, LEARNED), TOKENIZER_FILE)


def _name(index: int) -> str:
    return f"texts-{index:06d}.parquet"
