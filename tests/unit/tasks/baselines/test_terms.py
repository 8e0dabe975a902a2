"""What the linear model sees of a sample: tokens and neighbouring pairs of one row, weighted by the training split."""

import numpy as np
import pytest

from tasks.baselines.logistic import fit_logistic
from tasks.baselines.terms import Weighting, count_terms, weighting_of
from training.data.byte_strings import strings_in
from training.data.samples import Samples

VOCABULARY_SIZE = 50
NO_TERM = 49


def samples_of(rows: list[list[int]], kind: str = "uint16") -> Samples:
    tokens = [np.array(row, kind).tobytes() for row in rows]
    sizes = np.array([len(row) for row in tokens], np.int64)
    starts = np.cumsum(sizes) - sizes
    none, number = np.zeros((len(rows), 0)), len(rows)
    strings = strings_in(np.frombuffer(b"".join(tokens), np.uint8), starts, sizes)
    return Samples(
        np.arange(number), np.zeros(number, np.int64), np.ones(number, np.float32), none.astype(np.float32),
        none.astype(np.int64), strings, strings, np.dtype(kind),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["uint16", "int32"])
def test_tokens_and_pairs_are_counted_and_no_pair_goes_over_the_end_of_a_row(kind: str) -> None:
    counts = count_terms(samples_of([[1, 2, 1, 2], [], [2], [1, 3]], kind), VOCABULARY_SIZE).toarray()
    tokens, pairs = counts[:, :VOCABULARY_SIZE], counts[:, VOCABULARY_SIZE:]
    assert tokens[:, 1:4].tolist() == [[2, 2, 0], [0, 0, 0], [0, 1, 0], [1, 0, 1]]
    assert sorted(pairs[0][pairs[0] > 0].tolist()) == [1, 2]  # 2 1 once, 1 2 twice
    assert [int(row.sum()) for row in pairs] == [3, 0, 0, 1]


def test_terms_of_one_row_are_not_known_and_what_is_not_known_is_not_seen() -> None:
    counts = count_terms(samples_of([[1, 2], [1, 2], [1, 3]]), VOCABULARY_SIZE)
    weighting = weighting_of(counts, max_terms=100)
    assert weighting.columns[:2].tolist() == [1, 2] and len(weighting.columns) == 3  # and the pair of both
    assert weighting.weights[0] == pytest.approx(1.0) and weighting.weights[1] == pytest.approx(np.log(4 / 3) + 1)
    seen = weighting.apply(count_terms(samples_of([[1, 2, 2], [NO_TERM], []]), VOCABULARY_SIZE)).toarray()
    assert np.linalg.norm(seen, axis=1).tolist() == pytest.approx([1, 0, 0])
    assert weighting_of(counts, max_terms=1).columns.tolist() == [1]


def test_a_row_of_unknown_tokens_alone_has_the_scores_of_no_token_at_all() -> None:
    counts = count_terms(samples_of([[1], [1], [1], [2], [2]]), VOCABULARY_SIZE)
    weighting: Weighting = weighting_of(counts, 100)
    targets = np.array([[1, 0]] * 3 + [[0, 1]] * 2, np.float32)
    model = fit_logistic(weighting.apply(counts), targets, np.ones(5, np.float32), True, lambda: None)
    scores = model.scores(weighting.apply(count_terms(samples_of([[1], [2], [NO_TERM], []]), VOCABULARY_SIZE)))
    assert scores.argmax(axis=1)[:2].tolist() == [0, 1]
    assert scores[2].tolist() == scores[3].tolist() == pytest.approx(model.bias.tolist())


def test_a_row_of_no_weight_teaches_nothing() -> None:
    counts = count_terms(samples_of([[1], [1], [2], [2], [1], [2]]), VOCABULARY_SIZE)
    weighting = weighting_of(counts, 100)
    rows, targets = weighting.apply(counts), np.array([[1], [1], [0], [0], [0], [1]], np.float32)
    learnt = [
        fit_logistic(rows, targets, np.array([1, 1, 1, 1, last, last], np.float32), False, lambda: None)
        for last in (0, 9)
    ]
    assert [model.scores(rows)[0, 0] > 0 for model in learnt] == [True, False]
