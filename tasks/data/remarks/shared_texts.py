"""Rows of validation and test whose text, or list of tokens, a row of the training split has too.

Invariant: equal texts have equal keys. Of very many rows the share is taken of some texts, chosen by their keys.
"""

import duckdb

from storage.datasets import SPLITS
from tasks.configuration.run import DataConfig
from tasks.data.split import TRAIN
from tasks.data.sql import only_row

MOST_ROWS = 2_000_000
KEYS = 1 << 64
WARN_SHARE = 0.01
Counts = dict[str, dict[str, int]]


def count_shared_texts(connection: duckdb.DuckDBPyConnection) -> Counts:
    """For each split but training: of how many rows it was asked, and how many have the text of a training row."""
    (num_rows,) = only_row(connection, f"SELECT count(*) FROM assigned WHERE split <> {TRAIN}")
    asked = "text_key IS NOT NULL"
    if num_rows > MOST_ROWS:
        asked += f" AND text_key < {int(KEYS * (MOST_ROWS / num_rows))}"
    # What both have is looked up among the keys of the smaller side, which fit into memory.
    measured = f"SELECT text_key FROM assigned WHERE split <> {TRAIN} AND {asked}"
    both = f"SELECT DISTINCT text_key FROM assigned WHERE split = {TRAIN} AND text_key IN ({measured})"
    found = connection.execute(
        f"SELECT split, count(*), count(*) FILTER (WHERE text_key IN ({both})) FROM assigned "
        f"WHERE split <> {TRAIN} AND {asked} GROUP BY split"
    ).fetchall()
    return {SPLITS[split]: {"rows": rows, "in_training": shared} for split, rows, shared in sorted(found)}


def describe_shared_texts(counts: Counts, config: DataConfig) -> list[str]:
    """At most one sentence: of the splits of which so much is in training that their metrics are not the model's."""
    shares = [
        f"{found['in_training']:,} of {found['rows']:,} {split} rows ({found['in_training'] / found['rows']:.1%})"
        for split, found in ((split, counts[split]) for split in SPLITS if split in counts)
        if found["in_training"] > WARN_SHARE * found["rows"]
    ]
    if not shares:
        return []
    what = "text" if config.text else "tokens"
    return [
        f"{' and '.join(shares)} have the {what} of a training row: the metrics there are better than they would be on "
        f"rows that the model has not seen. {_remedy(config)}"
    ]


def _remedy(config: DataConfig) -> str:
    remove = "Remove the repeated rows"
    if config.split.by == "id" and config.split.splits_of_source != ["train"]:
        return f'{remove}, or set data.split.by = "text": equal texts are in one split then.'
    return f"{remove}."
