"""Blocks of the policy corpus: raw prompts in five made-up languages with metadata and one of 11 long-tailed classes.

Texts are short, 24 words in the median and 300 at most, so that a small model learns them in a minute on two cores.
Invariant: the text and `violation_class` are never missing; every metadata column is, in about 8 % of the rows.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tasks.corpora.draws import (
    Integers,
    block_generator,
    choices,
    choices_by_row,
    creation_times,
    exact_shares,
    log_normal_lengths,
    names,
    sample_ids,
    shard_ids,
    with_missing,
)
from tasks.corpora.words import LANGUAGES, load_lexicon

MISSING_SHARE = 0.08
MEDIAN_WORDS, SIGMA_WORDS, WORD_BOUNDS = 24, 0.6, (4, 300)
# What keeps a model from 1.0: labels that the text does not bear out, texts with hardly a word of their class, and
# texts that speak of a second class as much as of their own.
MISLABELLED_SHARE, VAGUE_SHARE, MIXED_SHARE = 0.025, 0.05, 0.12


class PolicyClass(NamedTuple):
    """One class: its share of the rows, and the means of the metadata that hint at it."""

    name: str
    share: float
    area: int
    account_age_days: float
    messages_per_hour: float
    num_links: float
    prior_reports: float


CLASSES = (
    PolicyClass("no_violation", 0.41, 0, 700, 4, 0.3, 0.03),
    PolicyClass("spam", 0.19, 1, 90, 30, 2.5, 0.12),
    PolicyClass("harassment", 0.125, 2, 400, 12, 0.2, 0.15),
    PolicyClass("adult_content", 0.085, 3, 300, 6, 0.8, 0.10),
    PolicyClass("hate_speech", 0.06, 2, 350, 10, 0.3, 0.18),
    PolicyClass("misinformation", 0.045, 4, 600, 8, 1.8, 0.09),
    PolicyClass("graphic_violence", 0.033, 3, 350, 6, 0.6, 0.12),
    PolicyClass("privacy_breach", 0.024, 5, 250, 5, 0.7, 0.11),
    PolicyClass("self_harm", 0.015, 3, 200, 5, 0.1, 0.05),
    PolicyClass("illegal_goods", 0.010, 1, 120, 14, 1.6, 0.16),
    PolicyClass("impersonation", 0.003, 5, 30, 16, 1.0, 0.20),
)
LANGUAGE_SHARES = (0.52, 0.18, 0.13, 0.10, 0.07)
SURFACES = ("chat", "search", "comments", "api", "voice")
AREAS = ("general", "commerce", "conduct", "safety", "integrity", "identity")
REGIONS = ("north_america", "europe", "latin_america", "asia_pacific", "africa")
# Rows are languages. Columns are regions.
_REGION_SHARES = np.array(
    [[50, 20, 2, 18, 10], [15, 20, 60, 2, 3], [4, 90, 1, 3, 2], [4, 66, 1, 25, 4], [4, 2, 2, 90, 2]], dtype=np.float64
)
_SURFACE_SHARES = np.array([[40, 25, 20, 10, 5]] + [[30, 12, 38, 14, 6]] * (len(CLASSES) - 1), dtype=np.float64)
# A row's policy area is that of its class in a bit more than a half of the rows, and any otherwise.
_AREA_SHARES = np.array(
    [[0.5 * (area == entry.area) + 0.5 / len(AREAS) for area in range(len(AREAS))] for entry in CLASSES]
)

SCHEMA = pa.schema(
    {
        "sample_id": pa.string(),
        "prompt_text": pa.string(),
        "token_count": pa.int32(),
        "language_confidence": pa.float32(),
        "prior_report_rate": pa.float64(),
        "account_age_days": pa.int32(),
        "messages_per_hour": pa.float32(),
        "num_links": pa.int16(),
        "language": pa.string(),
        "source_surface": pa.string(),
        "policy_area": pa.string(),
        "region": pa.string(),
        "violation_class": pa.string(),
        "created_at": pa.timestamp("us"),
        "shard_id": pa.string(),
    }
)


def draw_block(seed: int, block_index: int, num_rows: int) -> pa.Table:
    """Rows [block_index * num_rows, (block_index + 1) * num_rows) of the corpus, with the columns of `SCHEMA`."""
    generator = block_generator(seed, block_index)
    labels = exact_shares(generator, [entry.share for entry in CLASSES], num_rows)
    classes = _classes_of_contents(generator, labels)
    languages = exact_shares(generator, LANGUAGE_SHARES, num_rows)
    lengths = log_normal_lengths(generator, MEDIAN_WORDS, SIGMA_WORDS, WORD_BOUNDS, num_rows)
    metadata = _draw_metadata(generator, classes, languages, lengths)
    columns = {
        "sample_id": sample_ids(seed, block_index * num_rows, num_rows),
        "prompt_text": _draw_texts(generator, classes, languages, lengths),
        **{name: with_missing(generator, values, MISSING_SHARE) for name, values in metadata.items()},
        "violation_class": names(labels, [entry.name for entry in CLASSES]),
        "created_at": creation_times(generator, num_rows),
        "shard_id": shard_ids(generator, num_rows),
    }
    return pa.table([columns[field.name].cast(field.type) for field in SCHEMA], schema=SCHEMA)


def _classes_of_contents(generator: np.random.Generator, labels: Integers) -> Integers:
    """The class that a row really is of: its label, but for the mislabelled ones.

    These are drawn by the classes' shares; else they would outnumber the smallest class among rows that look like it.
    """
    others = choices(generator.random(len(labels)), [entry.share for entry in CLASSES])
    return np.where(generator.random(len(labels)) < MISLABELLED_SHARE, others, labels)


def _draw_texts(generator: np.random.Generator, classes: Integers, languages: Integers, lengths: Integers) -> pa.Array:
    """Common words with telling ones among them; how many is a matter of the row."""
    lexicon = load_lexicon(len(CLASSES))
    num_rows = len(classes)
    telling_rates = generator.uniform(0.1, 0.5, num_rows)
    telling_rates[generator.random(num_rows) < VAGUE_SHARE] = 0.02
    second_rates = np.where(generator.random(num_rows) < MIXED_SHARE, 0.5, 0.05)
    # The second class is the next or the next but one, so some pairs of classes are harder to distinguish than others.
    seconds = (classes + generator.integers(1, 3, num_rows)) % len(CLASSES)

    rows = np.repeat(np.arange(num_rows), lengths)
    is_telling = generator.random(len(rows)) < telling_rates[rows]
    telling_rows = rows[is_telling]
    is_second = generator.random(len(telling_rows)) < second_rates[telling_rows]
    words = lexicon.draw_common(generator, languages[rows])
    spoken_of = np.where(is_second, seconds[telling_rows], classes[telling_rows])
    words[is_telling] = lexicon.draw_telling(generator, languages[telling_rows], spoken_of)
    return lexicon.write_texts(generator, words, lengths)


def _draw_metadata(
    generator: np.random.Generator, classes: Integers, languages: Integers, lengths: Integers
) -> dict[str, pa.Array]:
    """Columns that go with the class weakly: their spread within a class is larger than the way between classes."""

    def means(name: str) -> np.ndarray:
        return np.array([getattr(entry, name) for entry in CLASSES], dtype=np.float64)[classes]

    num_rows = len(classes)
    reports = means("prior_reports")
    return {
        "token_count": pa.array(np.rint(lengths * generator.uniform(1.2, 1.6, num_rows)).astype(np.int64)),
        "language_confidence": pa.array(np.round(generator.beta(9, 1, num_rows), 4)),
        "prior_report_rate": pa.array(np.round(generator.beta(3 * reports, 3 * (1 - reports)), 5)),
        "account_age_days": pa.array(np.rint(generator.exponential(means("account_age_days"))).astype(np.int64)),
        "messages_per_hour": pa.array(np.round(generator.gamma(1.0, means("messages_per_hour")), 3)),
        "num_links": pa.array(generator.poisson(means("num_links")).astype(np.int64)),
        "language": names(languages, [language.code for language in LANGUAGES]),
        "source_surface": names(choices_by_row(generator, _SURFACE_SHARES, classes), SURFACES),
        "policy_area": names(choices_by_row(generator, _AREA_SHARES, classes), AREAS),
        "region": names(choices_by_row(generator, _REGION_SHARES, languages), REGIONS),
    }
