"""The files that an export has a copy of: what a row must have, which rows go through the network together."""

from array import array
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.small_models import INPUTS, ROW, make_model
from training.export.standalone.holdfast_inputs import Encoded, InputError, category_name, join
from training.export.standalone.holdfast_model import padded, passes


def encode(*rows: dict[str, Any]) -> Encoded:
    return INPUTS.encode({name: [row[name] for row in rows] for name in rows[0]})


def random_rows(lengths: list[int]) -> Encoded:
    generator = torch.Generator().manual_seed(1)
    tokens = [array("i", torch.randint(1, 50, (length,), generator=generator).tolist()) for length in lengths]
    numeric = torch.randn(len(lengths), 2, generator=generator)
    return Encoded(tokens, numeric, torch.randint(0, 4, (len(lengths), 1), generator=generator))


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 400))
def test_each_row_goes_through_once_and_no_pass_has_more_tokens_than_it_may(lengths: list[int], most: int) -> None:
    found = list(passes(lengths, most))
    assert sorted(row for rows in found for row in rows) == list(range(len(lengths)))
    for rows in found:
        longest = max(lengths[row] for row in rows)
        assert len(rows) == 1 or len(rows) * longest <= most


def test_rows_of_many_lengths_are_hardly_padded() -> None:
    lengths = [1 + (i * 7919) % 256 for i in range(8192)]
    computed = sum(len(rows) * max(lengths[row] for row in rows) for rows in passes(lengths, 4096))
    assert sum(lengths) / computed > 0.98


def test_a_row_has_the_answer_that_it_has_alone_whatever_it_is_padded_to() -> None:
    model, rows = make_model(), random_rows([5, 9, 1, 9, 16, 2, 0])
    together = model.logits(rows)
    alone = [
        model.logits(Encoded([ids], rows.numeric[i : i + 1], rows.categorical[i : i + 1]))
        for i, ids in enumerate(rows.tokens)
    ]
    assert together.isfinite().all()
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-6, rtol=1e-5)
    assert model.logits(join([rows, rows])).shape == (14, 3)


def test_tokens_are_padded_with_zeros() -> None:
    assert padded([array("i", [7, 8]), array("i"), array("i", [9])]).tolist() == [[7, 8], [0, 0], [9, 0]]
    assert padded([array("i")]).tolist() == [[0]]


def test_missing_values_are_imputed_and_flagged_and_unknown_categories_are_known_as_such() -> None:
    rows = encode(ROW, ROW | {"n": None, "c": None}, ROW | {"n": float("nan"), "c": 3.0}, ROW | {"c": "new", "n": True})
    assert [ids.tolist() for ids in rows.tokens] == [[1, 2]] * 4
    assert rows.numeric.tolist() == [[0.5, 0], [0.25, 1], [0.25, 1], [-0.25, 0]]
    assert rows.categorical.tolist() == [[2], [0], [3], [1]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ids": None}, "'ids', row 1: expected whole numbers from 1 to 49, at least one; .*found none"),
        ({"ids": [1, 50, 0]}, "found ids from 1 to 50"),
        ({"ids": [1, 0, 0]}, "found ids from 0 to 1"),
        ({"ids": [1.5, 2, 3]}, "found \\[1.5, 2\\]"),
        ({"ids": [1, None, 3]}, "found \\[1, None\\]"),
        ({"ids": [2**40, 2, 3]}, "found \\[1099511627776, 2\\]"),
        ({"mask": [0, 0, 0]}, "found no token"),
        ({"mask": [1, 1]}, "'mask', row 1: expected 3 numbers, each 0 or 1"),
        ({"mask": [1, 2, 0]}, "found \\[1, 2, 0\\]"),
        ({"mask": None}, "found none"),
        ({"ids": [1] * 9, "mask": [1] * 9}, "at most 8 tokens.*found 9 tokens"),
        ({"n": float("inf")}, "'n', row 1: expected a finite number, found inf"),
        ({"n": 1e300}, "expected a finite number"),
        ({"n": "4"}, "expected a number, or None"),
    ],
)
def test_what_the_model_does_not_take_is_named_with_column_and_row(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        encode(ROW, ROW | change)


def test_a_column_that_is_missing_is_named() -> None:
    with pytest.raises(InputError, match="'c': expected a column of this name, found the columns ids, mask, n"):
        encode({name: value for name, value in ROW.items() if name != "c"})
    with pytest.raises(InputError, match="'n': expected a column of this name"):
        make_model().predict([ROW, {name: value for name, value in ROW.items() if name != "n"}])


def test_one_row_that_is_no_list_has_one_prediction_that_is_none_either() -> None:
    model = make_model()
    assert model.predict(ROW) == model.predict([ROW])[0]
    with pytest.raises(InputError, match="'c': expected a column of this name, found the columns ids, mask, n"):
        model.predict({name: value for name, value in ROW.items() if name != "c"})


def test_a_prediction_has_the_label_of_the_highest_probability() -> None:
    for found in make_model().predict([ROW, ROW | {"c": None}]):
        assert sum(found["probabilities"].values()) == pytest.approx(1)
        assert found["label"] == max(found["probabilities"], key=found["probabilities"].__getitem__)


def test_whole_numbers_are_one_category_however_they_arrive() -> None:
    assert [category_name(value) for value in (3, 3.0, -0.0, "3", True, 2.5, None, float("nan"))] == [
        "3", "3", "0", "3", "true", "2.5", None, None,
    ]  # fmt: skip
