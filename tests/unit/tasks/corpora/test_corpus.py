"""The generated corpora: what they promise about shares, lengths, bytes, memory and about leaving other files alone."""

import hashlib
import re
import resource
import tracemalloc
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.errors import ConfigurationError, StoreError
from tasks.config.load import configure
from tasks.corpora.generate import BLOCK_ROWS, CorpusConfig, Job, generate_corpus

POLICY_ROWS, QUALITY_ROWS = 10_000, 8_000
METADATA = {
    "policy": [
        *("token_count", "language_confidence", "prior_report_rate", "account_age_days", "messages_per_hour"),
        *("num_links", "language", "source_surface", "policy_area", "region"),
    ],
    "quality": ["source_surface", "response_length", "model_family"],
}
COMPLETE = {
    "policy": ["sample_id", "prompt_text", "violation_class", "created_at", "shard_id"],
    "quality": [
        *("sample_id", "input_ids", "attention_mask", "language", "prompt_length", "label", "created_at", "shard_id")
    ],
}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    paths = generate_corpus(tmp_path_factory.mktemp("policy"), "policy", POLICY_ROWS)
    return pa.concat_tables([pq.read_table(path) for path in paths])


@pytest.fixture(scope="module")
def quality(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    paths = generate_corpus(tmp_path_factory.mktemp("quality"), "quality", QUALITY_ROWS)
    return pa.concat_tables([pq.read_table(path) for path in paths])


@pytest.fixture(scope="module")
def corpora(policy: pa.Table, quality: pa.Table) -> dict[str, pa.Table]:
    return {"policy": policy, "quality": quality}


def test_eleven_classes_have_shares_from_41_percent_down_to_a_third_of_a_percent(policy: pa.Table) -> None:
    counts = Counter(policy["violation_class"].to_pylist())
    shares = sorted((count / POLICY_ROWS for count in counts.values()), reverse=True)
    assert len(shares) == 11
    assert shares[0] == pytest.approx(0.41, abs=0.005)
    assert shares[-1] == pytest.approx(0.003, abs=0.001)
    assert all(larger > smaller for larger, smaller in pairwise(shares))


def test_every_whole_block_of_a_policy_corpus_has_every_class(policy: pa.Table) -> None:
    labels = policy["violation_class"].to_pylist()
    for first in range(0, POLICY_ROWS - BLOCK_ROWS, BLOCK_ROWS):
        assert min(Counter(labels[first : first + BLOCK_ROWS]).values()) in (6, 7)


def test_eighteen_percent_of_a_quality_corpus_are_positive(quality: pa.Table) -> None:
    labels = quality["label"].to_numpy()
    assert set(labels) == {0, 1}
    assert labels.mean() == pytest.approx(0.18, abs=0.005)


@pytest.mark.parametrize(("job", "share"), [("policy", 0.08), ("quality", 0.06)])
def test_metadata_is_missing_in_its_share_of_the_rows(corpora: dict[str, pa.Table], job: str, share: float) -> None:
    for name in METADATA[job]:
        assert corpora[job][name].null_count / corpora[job].num_rows == pytest.approx(share, abs=0.015), name


@pytest.mark.parametrize("job", ["policy", "quality"])
def test_ids_inputs_labels_and_split_keys_are_never_missing(corpora: dict[str, pa.Table], job: str) -> None:
    assert sorted(METADATA[job] + COMPLETE[job]) == sorted(corpora[job].column_names)
    assert [corpora[job][name].null_count for name in COMPLETE[job]] == [0] * len(COMPLETE[job])


@pytest.mark.parametrize("job", ["policy", "quality"])
def test_ids_are_sixteen_hex_digits_and_unique(corpora: dict[str, pa.Table], job: str) -> None:
    ids = corpora[job]["sample_id"].to_pylist()
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch("[0-9a-f]{16}", id_) for id_ in ids)


def test_no_id_of_a_later_block_is_one_of_an_earlier_block(tmp_path: Path) -> None:
    num_rows = 5 * BLOCK_ROWS
    paths = generate_corpus(tmp_path, "quality", num_rows, CorpusConfig(seed=2**63 - 1))
    ids = {id_ for path in paths for id_ in pq.read_table(path, columns=["sample_id"])["sample_id"].to_pylist()}
    assert len(ids) == num_rows


def test_token_lengths_are_log_normal_and_reach_2048(quality: pa.Table) -> None:
    lengths = _real_lengths(quality)
    logarithms = np.log(lengths[(lengths > 8) & (lengths < 2048)])
    assert lengths.max() == 2048
    assert np.median(lengths) == pytest.approx(250, rel=0.05)
    assert logarithms.std() == pytest.approx(0.8, abs=0.05)
    assert abs(((logarithms - logarithms.mean()) ** 3).mean()) / logarithms.std() ** 3 < 0.2


def test_text_lengths_are_log_normal_and_short(policy: pa.Table) -> None:
    lengths = np.array([len(text.split()) for text in policy["prompt_text"].to_pylist()])
    assert np.median(lengths) == pytest.approx(24, abs=1)
    assert np.log(lengths).std() == pytest.approx(0.6, abs=0.05)
    assert lengths.min() >= 4 and lengths.max() <= 300


def test_padding_is_at_the_end_and_exactly_where_the_mask_is_0(quality: pa.Table) -> None:
    num_padded = 0
    for tokens, mask in zip(quality["input_ids"].to_numpy(), quality["attention_mask"].to_numpy(), strict=True):
        num_real = int(mask.sum())
        assert len(tokens) == len(mask) <= 2048
        assert mask[:num_real].all() and tokens[:num_real].all()
        assert not tokens[num_real:].any()
        assert tokens.max() < 8192
        num_padded += num_real < len(mask)
    assert 0.15 < num_padded / quality.num_rows < 0.3


def test_prompt_and_response_make_up_the_whole_row(quality: pa.Table) -> None:
    responses = quality["response_length"].to_pandas()
    totals = quality["prompt_length"].to_numpy() + responses
    assert (totals == _real_lengths(quality))[responses.notna()].all()


def test_texts_are_sentences_in_five_languages_with_letters_beyond_ascii(policy: pa.Table) -> None:
    texts = policy["prompt_text"].to_pylist()
    assert all(text[-1] in ".?!" and text == text.strip() and "  " not in text for text in texts)
    assert set(policy["language"].drop_null().to_pylist()) == {"en", "es", "de", "ru", "ja"}
    assert 0.2 < np.mean([not text.isascii() for text in texts]) < 0.6


@pytest.mark.parametrize("job", ["policy", "quality"])
def test_the_same_seed_gives_the_same_bytes_and_another_seed_gives_others(tmp_path: Path, job: Job) -> None:
    hashes = [
        _hashes(generate_corpus(tmp_path / str(run), job, 3000, CorpusConfig(seed=seed)))
        for run, seed in enumerate((5, 5, 6))
    ]
    assert hashes[0] == hashes[1]
    assert not set(hashes[0]) & set(hashes[2])


@pytest.mark.parametrize("job", ["policy", "quality"])
def test_a_row_is_the_same_however_many_rows_follow_it(tmp_path: Path, corpora: dict[str, pa.Table], job: Job) -> None:
    paths = generate_corpus(tmp_path, job, 2500, CorpusConfig(rows_per_file=700))
    few = pa.concat_tables([pq.read_table(path) for path in paths])
    assert few.equals(corpora[job].slice(0, 2500))


@pytest.mark.parametrize(
    ("num_rows", "rows_per_file", "rows_of_files"),
    [
        (1, 100, [1]),
        (3, 100, [1, 1, 1]),
        (10, 100, [3, 3, 3, 1]),
        (400, 100, [100] * 4),
        (430, 100, [100, 100, 100, 100, 30]),
    ],
)
def test_the_rows_are_assigned_to_several_files(
    tmp_path: Path, num_rows: int, rows_per_file: int, rows_of_files: list[int]
) -> None:
    paths = generate_corpus(tmp_path, "policy", num_rows, CorpusConfig(rows_per_file=rows_per_file))
    assert paths == sorted(tmp_path.iterdir())
    assert [pq.read_metadata(path).num_rows for path in paths] == rows_of_files


def test_files_differ_in_the_size_of_their_row_groups(tmp_path: Path) -> None:
    paths = generate_corpus(tmp_path, "policy", 4 * BLOCK_ROWS)
    assert len({pq.read_metadata(path).row_group(0).num_rows for path in paths}) == 4


def test_duckdb_reads_the_types_that_the_jobs_promise(tmp_path: Path) -> None:
    generate_corpus(tmp_path / "policy", "policy", 10)
    generate_corpus(tmp_path / "quality", "quality", 10)
    assert _duckdb_types(tmp_path / "policy") == {
        **dict.fromkeys(["sample_id", "prompt_text", "language", "source_surface", "policy_area"], "VARCHAR"),
        **dict.fromkeys(["region", "violation_class", "shard_id"], "VARCHAR"),
        **dict.fromkeys(["token_count", "account_age_days"], "INTEGER"),
        **dict.fromkeys(["language_confidence", "messages_per_hour"], "FLOAT"),
        **{"prior_report_rate": "DOUBLE", "num_links": "SMALLINT", "created_at": "TIMESTAMP"},
    }
    assert _duckdb_types(tmp_path / "quality") == {
        **{"sample_id": "VARCHAR", "input_ids": "INTEGER[]", "attention_mask": "TINYINT[]", "language": "VARCHAR"},
        **{"source_surface": "VARCHAR", "prompt_length": "INTEGER", "response_length": "INTEGER"},
        **{"model_family": "VARCHAR", "label": "TINYINT", "shard_id": "VARCHAR", "created_at": "TIMESTAMP"},
    }


def test_memory_does_not_grow_with_the_number_of_rows(tmp_path: Path) -> None:
    _measure_peak_bytes(tmp_path / "warm", 1)
    few, many = (_measure_peak_bytes(tmp_path / str(num), num) for num in (2, 6))
    assert few > 1_000_000
    assert many < 1.2 * few


def test_progress_adds_up_to_the_number_of_rows(tmp_path: Path) -> None:
    told: list[int] = []
    generate_corpus(tmp_path, "policy", 5000, on_rows=told.append)
    assert sum(told) == 5000 and min(told) > 0 and max(told) <= BLOCK_ROWS


def test_a_file_under_way_does_not_look_like_data(tmp_path: Path) -> None:
    rows_seen: list[int] = []

    def look(_: int) -> None:
        rows_seen.append(sum(pq.read_metadata(path).num_rows for path in tmp_path.glob("*.parquet")))

    generate_corpus(tmp_path, "policy", 4000, on_rows=look)
    assert rows_seen[0] == 0 and sorted(rows_seen) == rows_seen and rows_seen[-1] == 3000


def test_an_interrupt_leaves_whole_files_only(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        generate_corpus(tmp_path, "policy", 4000, on_rows=_interrupt_at(2))
    assert [path.name for path in tmp_path.iterdir()] == ["part-00000.parquet"]
    assert pq.read_table(tmp_path / "part-00000.parquet").num_rows == 1000


def test_a_file_that_cannot_be_written_to_its_end_is_a_clear_error_and_leaves_nothing_cut_off(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(StoreError, match=r"Cannot write .*part-00000\.parquet.* Free space on the disk"):
            generate_corpus(tmp_path, "quality", 4000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_files_in_it_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "part-00000.parquet").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"has files in it already.*Name another folder"):
        generate_corpus(tmp_path, "policy", 10)
    assert (tmp_path / "part-00000.parquet").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"new or empty folder; .*file.* cannot be one"):
        generate_corpus(tmp_path / "file" / below, "policy", 10)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_rows": 0}, "at least one row; found 0"),
        ({"num_rows": -5}, "at least one row; found -5"),
        ({"job": "poetry"}, "policy or quality; found 'poetry'"),
    ],
)
def test_a_wrong_argument_is_a_clear_error_and_makes_no_folder(
    tmp_path: Path, arguments: dict[str, int | str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        generate_corpus(tmp_path / "out", **{"job": "policy", "num_rows": 10} | arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seed": -1}, "seed: must be at least 0"),
        ({"seed": 2**63}, "seed: must be below"),
        ({"rows_per_file": 0}, "rows_per_file: must be at least 1"),
        ({"rows_per_flie": 5}, r"rows_per_flie: there is no such key; did you mean rows_per_file\?"),
    ],
)
def test_a_wrong_option_is_named(values: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        configure(CorpusConfig, values, "options of the corpus")


def test_counting_words_tells_the_policy_classes_apart_but_not_perfectly(policy: pa.Table) -> None:
    words = [re.findall(r"\w+", text.lower()) for text in policy["prompt_text"].to_pylist()]
    vocabulary = {word: index for index, word in enumerate(sorted({word for row in words for word in row}))}
    classes, labels = np.unique(policy["violation_class"].to_numpy(), return_inverse=True)
    rows = [np.array([vocabulary[word] for word in row]) for row in words]
    scores = _naive_bayes_scores(rows, labels, len(vocabulary), num_train=7000)
    scores += np.log(np.bincount(labels[:7000]))
    predicted, truth = scores.argmax(axis=1), labels[7000:]
    f1 = [
        2 * ((predicted == c) & (truth == c)).sum() / ((predicted == c).sum() + (truth == c).sum())
        for c in range(len(classes))
    ]
    assert 0.6 < np.mean(f1) < 0.95
    assert 0.8 < (predicted == truth).mean() < 0.97


def test_counting_tokens_tells_the_quality_labels_apart_but_not_perfectly(quality: pa.Table) -> None:
    labels = quality["label"].to_numpy().astype(np.int64)
    scores = _naive_bayes_scores(list(quality["input_ids"].to_numpy()), labels, 8192, num_train=6000)
    order = np.argsort(scores[:, 1] - scores[:, 0])
    truth = labels[6000:][order]
    num_positive = int(truth.sum())
    ranks = np.flatnonzero(truth) + 1
    auc = (ranks.sum() - num_positive * (num_positive + 1) / 2) / num_positive / (len(truth) - num_positive)
    assert 0.75 < auc < 0.97


def test_metadata_hints_at_the_class_but_does_not_give_it_away(policy: pa.Table) -> None:
    is_spam = np.array(policy["violation_class"].to_pylist()) == "spam"
    per_hour = policy["messages_per_hour"].to_pandas().to_numpy()
    spam, other = per_hour[is_spam], per_hour[~is_spam]
    assert np.nanmedian(spam) > 2 * np.nanmedian(other)
    assert np.nanquantile(spam, 0.2) < np.nanquantile(other, 0.8)


def _naive_bayes_scores(rows: list[np.ndarray], labels: np.ndarray, vocabulary_size: int, num_train: int) -> np.ndarray:
    """Log-likelihoods (rows after the training rows, classes) of each row under a smoothed bag of words per class."""
    num_classes = int(labels.max()) + 1
    keys = np.concatenate([row + labels[i] * vocabulary_size for i, row in enumerate(rows[:num_train])])
    counts = np.bincount(keys, minlength=num_classes * vocabulary_size).reshape(num_classes, vocabulary_size) + 0.5
    likelihoods = np.log(counts / counts.sum(axis=1, keepdims=True))
    return np.array([likelihoods[:, row].sum(axis=1) for row in rows[num_train:]])


def _real_lengths(quality: pa.Table) -> np.ndarray:
    return np.array([int(mask.sum()) for mask in quality["attention_mask"].to_numpy()])


def _hashes(paths: list[Path]) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


def _duckdb_types(folder: Path) -> dict[str, str]:
    return {row[0]: row[1] for row in duckdb.execute(f"DESCRIBE SELECT * FROM '{folder}/*.parquet'").fetchall()}


def _interrupt_at(call: int) -> Callable[[int], None]:
    calls: list[int] = []

    def interrupt(num_rows: int) -> None:
        calls.append(num_rows)
        if len(calls) == call:
            raise KeyboardInterrupt

    return interrupt


def _measure_peak_bytes(out: Path, num_blocks: int) -> int:
    """The most that Python, NumPy and Arrow held at once; each file has all but a fourth of the blocks' rows."""
    arrow_bytes: list[int] = []
    tracemalloc.start()
    try:
        generate_corpus(
            out, "quality", num_blocks * BLOCK_ROWS, on_rows=lambda _: arrow_bytes.append(pa.total_allocated_bytes())
        )
        return tracemalloc.get_traced_memory()[1] + max(arrow_bytes)
    finally:
        tracemalloc.stop()
