"""Lists of token ids as flat arrays: what is good, what the mask leaves, and what is cut off."""

import pyarrow as pa
import pytest

from tasks.data.token_lists import good_tokens, kept_tokens, narrow_type

TOKENS = pa.array([[5, 6, 7], [8], [9, 0, 0]], pa.list_(pa.int32()))
PADDED = pa.array([[1, 1, 1], [1], [1, 0, 0]], pa.list_(pa.int8()))


def masks(rows: list[list[int]]) -> pa.ListArray:
    return pa.array(rows, pa.list_(pa.int8()))


@pytest.mark.parametrize(
    ("mask", "left"),
    [
        (PADDED, [[5, 6, 7], [8], [9]]),
        (masks([[0, 1, 1], [1], [1, 0, 0]]), [[6, 7], [8], [9]]),
        (masks([[1, 0, 1], [1], [1, 0, 0]]), [[5, 7], [8], [9]]),
    ],
)
def test_what_the_mask_leaves_of_good_rows(mask: pa.ListArray, left: list[list[int]]) -> None:
    found = good_tokens(TOKENS, mask, 10, None)
    assert found is not None and found.to_pylist() == left
    assert kept_tokens(TOKENS, mask, 2, pa.uint16()).to_pylist() == [row[:2] for row in left]


def test_a_slice_of_rows_is_what_these_rows_are() -> None:
    found = good_tokens(TOKENS[1:], PADDED[1:], 10, None)
    assert found is not None and found.to_pylist() == [[8], [9]]
    assert kept_tokens(TOKENS[1:], PADDED[1:], 5, pa.int32()).to_pylist() == [[8], [9]]


@pytest.mark.parametrize(
    ("tokens", "mask", "vocabulary_size", "max_tokens"),
    [
        (TOKENS, None, 10, None),  # 0 that no mask hides
        (TOKENS, PADDED, 9, None),
        (TOKENS, PADDED, 10, 2),
        (TOKENS, masks([[1, 1, 1], [0], [1, 0, 0]]), 10, None),
        (TOKENS, masks([[1, 1, 1], [1], [1, 0, 2]]), 10, None),
        (TOKENS, masks([[1, 1], [1], [1, 0, 0]]), 10, None),
        (pa.array([[5, None, 7], [8], [9, 0, 0]], pa.list_(pa.int32())), PADDED, 10, None),
        (pa.array([[5, 6, 7], None, [9, 0, 0]], pa.list_(pa.int32())), None, 10, None),
    ],
)
def test_rows_that_break_a_rule_are_not_good(
    tokens: pa.ListArray, mask: pa.ListArray | None, vocabulary_size: int, max_tokens: int | None
) -> None:
    assert good_tokens(tokens, mask, vocabulary_size, max_tokens) is None


def test_no_rows_are_good_and_have_no_tokens() -> None:
    found = good_tokens(TOKENS[:0], PADDED[:0], 10, 5)
    assert found is not None and len(found) == 0
    assert len(kept_tokens(TOKENS[:0], PADDED[:0], 5, pa.uint16())) == 0


def test_lists_that_are_as_they_are_kept_already_are_not_copied() -> None:
    kind = narrow_type(100)
    lists = pa.array([[1, 2, 3], [], [4]], pa.list_(kind))
    assert kept_tokens(lists, None, 3, kind) is lists
    assert kept_tokens(lists.slice(1), None, 3, kind).to_pylist() == [[], [4]]
    assert kept_tokens(lists, None, 2, kind).to_pylist() == [[1, 2], [], [4]]
    assert kept_tokens(lists, None, 3, pa.int32()).type == pa.list_(pa.int32())


def test_ids_of_a_large_vocabulary_do_not_fit_into_16_bits() -> None:
    assert narrow_type(1 << 16) == pa.uint16() and narrow_type((1 << 16) + 1) == pa.int32()
