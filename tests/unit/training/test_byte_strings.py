"""Strings of bytes in buffers, gathered: what Python's own bytes would be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data import byte_strings
from training.data.byte_strings import INLINE_BYTES, ByteStrings, join_strings, strings_in

# Short ones stand in Arrow's views themselves, longer ones elsewhere.
STRINGS = st.lists(st.binary(max_size=3 * INLINE_BYTES), max_size=12)


def make_strings(texts: list[bytes], gap: int = 0) -> ByteStrings:
    """In one buffer, with so many other bytes before each."""
    buffer = b"".join(b"#" * gap + text for text in texts)
    sizes = np.array([len(text) for text in texts], dtype=np.int64)
    return strings_in(np.frombuffer(buffer, np.uint8), np.cumsum(sizes + gap) - sizes, sizes)


def gathered(strings: ByteStrings, behind: list[int] | None = None, filler: int = 0) -> bytes:
    counts = np.array(behind if behind is not None else [0] * len(strings), dtype=np.int64)
    return strings.gather(counts, filler).tobytes()


@settings(deadline=None)
@given(st.lists(st.tuples(STRINGS, st.integers(0, 3)), min_size=1, max_size=4), st.data())
def test_strings_of_several_buffers_are_gathered_in_any_order(
    buffers: list[tuple[list[bytes], int]], data: st.DataObject
) -> None:
    texts = [text for of_buffer, _ in buffers for text in of_buffer]
    strings = join_strings([make_strings(of_buffer, gap) for of_buffer, gap in buffers])
    assert len(strings) == len(texts)
    places = data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=20)) if texts else []
    behind = data.draw(st.lists(st.integers(0, 2 * INLINE_BYTES), min_size=len(places), max_size=len(places)))
    expected = b"".join(texts[place] + b"." * count for place, count in zip(places, behind, strict=True))
    assert gathered(strings.at(np.array(places, dtype=np.int64)), behind, ord(".")) == expected


def test_a_slice_of_strings_is_of_the_same_buffers() -> None:
    strings = make_strings([b"a", b"long enough to stand elsewhere", b"", b"c"])
    part = strings.at(slice(1, 3))
    assert part.buffers is strings.buffers
    assert gathered(part) == b"long enough to stand elsewhere"


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 200])
def test_a_buffer_that_is_longer_than_a_place_can_say_is_given_as_several(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_strings, "SPAN_BITS", 4)
    texts = [bytes([65 + place % 26]) * (place % 16) for place in range(length)]
    strings = make_strings(texts)
    assert max(map(len, strings.buffers)) < 2 << byte_strings.SPAN_BITS
    assert strings.starts.max(initial=0) < 1 << byte_strings.SPAN_BITS
    assert gathered(strings) == b"".join(texts)


@pytest.mark.parametrize(("start", "size"), [(3, 20), (-1, 20), (0, -1), (30, 1), (1 << 62, 4)])
def test_no_memory_beside_a_buffer_is_read(start: int, size: int) -> None:
    strings = ByteStrings((np.zeros(22, np.uint8),), np.array([0]), np.array([start]), np.array([size]))
    with pytest.raises(IndexError, match="not within their buffers"):
        strings.gather(np.array([0]), 0)
