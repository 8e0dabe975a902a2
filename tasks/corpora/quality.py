"""Blocks of the quality corpus: prompts and responses as token ids, with metadata and a label that is 1 in 18 %.

Invariant: `input_ids` and `attention_mask` are never missing and of equal length, at most 2,048; id 0 is padding and
stands exactly where the mask is 0: at the end of about a quarter of the rows, as a batching tokenizer leaves it.
"""

from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.corpora.draws import (
    Floats,
    Integers,
    block_generator,
    choices,
    choices_by_row,
    creation_times,
    exact_shares,
    log_normal_lengths,
    names,
    row_positions,
    sample_ids,
    shard_ids,
    with_missing,
)

VOCABULARY_SIZE = 8192
PADDING, BEGIN, SEPARATOR, END, FIRST_WORD = 0, 1, 2, 3, 4
MAX_TOKENS = 2048
MISSING_SHARE = 0.06
POSITIVE_SHARE = 0.18
PADDED_SHARE, PADDED_TO = 0.25, 64
MEDIAN_TOKENS, SIGMA_TOKENS, TOKEN_BOUNDS = 250, 0.8, (8, MAX_TOKENS)
# What the label rests on: among the telling tokens of a row, the share of good ones. Rows of one label differ in it by
# SIGMA_GOOD, and some labels are wrong, so that no model reaches an AUC of 1.
TELLING_SHARE, NUM_TELLING = 0.08, 48
MEAN_GOOD, SIGMA_GOOD = (0.36, 0.70), 0.11
MISLABELLED_SHARE = 0.02

LANGUAGES, LANGUAGE_SHARES = ("en", "es", "de", "ru", "ja"), (0.55, 0.15, 0.12, 0.1, 0.08)
SURFACES, FAMILIES = ("chat", "api", "editor", "search"), ("aspen", "birch", "cedar", "larch")
# Rows are labels.
_SURFACE_SHARES = np.array([[45, 25, 15, 15], [35, 25, 28, 12]], dtype=np.float64)
_FAMILY_SHARES = np.array([[35, 30, 20, 15], [20, 27, 23, 30]], dtype=np.float64)

SCHEMA = pa.schema(
    {
        "sample_id": pa.string(),
        "input_ids": pa.list_(pa.int32()),
        "attention_mask": pa.list_(pa.int8()),
        "language": pa.string(),
        "source_surface": pa.string(),
        "prompt_length": pa.int32(),
        "response_length": pa.int32(),
        "model_family": pa.string(),
        "label": pa.int8(),
        "shard_id": pa.string(),
        "created_at": pa.timestamp("us"),
    }
)


def draw_block(seed: int, block_index: int, num_rows: int) -> pa.Table:
    """Rows [block_index * num_rows, (block_index + 1) * num_rows) of the corpus, with the columns of `SCHEMA`."""
    generator = block_generator(seed, block_index)
    labels = exact_shares(generator, (1 - POSITIVE_SHARE, POSITIVE_SHARE), num_rows)
    qualities = np.where(generator.random(num_rows) < MISLABELLED_SHARE, 1 - labels, labels)
    lengths = log_normal_lengths(generator, MEDIAN_TOKENS, SIGMA_TOKENS, TOKEN_BOUNDS, num_rows)
    prompt_lengths = np.clip(np.rint(lengths * generator.beta(2, 4, num_rows)), 2, lengths - 3).astype(np.int64)
    columns = {
        "sample_id": sample_ids(seed, block_index * num_rows, num_rows),
        **_draw_tokens(generator, qualities, prompt_lengths, lengths),
        "language": names(exact_shares(generator, LANGUAGE_SHARES, num_rows), LANGUAGES),
        "source_surface": names(choices_by_row(generator, _SURFACE_SHARES, qualities), SURFACES),
        "prompt_length": pa.array(prompt_lengths),
        "response_length": pa.array(lengths - prompt_lengths),
        "model_family": names(choices_by_row(generator, _FAMILY_SHARES, qualities), FAMILIES),
        "label": pa.array(labels),
        "shard_id": shard_ids(generator, num_rows),
        "created_at": creation_times(generator, num_rows),
    }
    for name in ("source_surface", "response_length", "model_family"):
        columns[name] = with_missing(generator, columns[name], MISSING_SHARE)
    return pa.table([columns[field.name].cast(field.type) for field in SCHEMA], schema=SCHEMA)


def _draw_tokens(
    generator: np.random.Generator, qualities: Integers, prompt_lengths: Integers, lengths: Integers
) -> dict[str, pa.Array]:
    """BEGIN prompt SEPARATOR response END, and padding up to a multiple of 64 in some rows."""
    padded_lengths = np.where(
        generator.random(len(lengths)) < PADDED_SHARE, -(-lengths // PADDED_TO) * PADDED_TO, lengths
    )
    ends = np.cumsum(padded_lengths)
    begins = ends - padded_lengths
    rows = np.repeat(np.arange(len(lengths)), padded_lengths)
    tokens = _draw_words(generator, _shares_of_good(generator, qualities), rows)
    mask = row_positions(padded_lengths) < lengths[rows]
    tokens[~mask] = PADDING
    tokens[begins] = BEGIN
    tokens[begins + prompt_lengths] = SEPARATOR
    tokens[begins + lengths - 1] = END
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    return {
        "input_ids": pa.ListArray.from_arrays(offsets, pa.array(tokens)),
        "attention_mask": pa.ListArray.from_arrays(offsets, pa.array(mask.astype(np.int8))),
    }


def _shares_of_good(generator: np.random.Generator, qualities: Integers) -> Floats:
    return np.clip(generator.normal(np.array(MEAN_GOOD)[qualities], SIGMA_GOOD), 0, 1)


def _draw_words(generator: np.random.Generator, shares_of_good: Floats, rows: Integers) -> npt.NDArray[np.int32]:
    """A token for each entry of `rows`, by a look-up in tables that hold each id as often as it is likely."""
    common, telling = _token_tables()
    tokens = common[generator.integers(0, len(common), len(rows), dtype=np.uint32)]
    positions = np.flatnonzero(generator.random(len(rows), dtype=np.float32) < TELLING_SHARE)
    is_good = generator.random(len(positions)) < shares_of_good[rows[positions]]
    tokens[positions] = telling[is_good.astype(np.int64), generator.integers(0, NUM_TELLING, len(positions))]
    return tokens


@cache
def _token_tables() -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Common ids by Zipf's law, shape (2**18,), and the bad and the good ones, shape (2, NUM_TELLING).

    The same for every seed: a model trained on one corpus can read another.
    """
    generator = np.random.Generator(np.random.Philox(key=VOCABULARY_SIZE))
    ids = (FIRST_WORD + generator.permutation(VOCABULARY_SIZE - FIRST_WORD)).astype(np.int32)
    positions = (np.arange(2**18) + 0.5) / 2**18
    common = ids[choices(positions, 1 / (np.arange(len(ids)) + 5.0))]
    # Ids that common text has now and then: seeing one of them proves nothing.
    return common, ids[1000 : 1000 + 2 * NUM_TELLING].reshape(2, NUM_TELLING)
