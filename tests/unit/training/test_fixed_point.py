"""Gradients as fixed-point numbers: the same bits in every order, within a stated error, and nothing lost silently."""

import math
import random
from collections.abc import Sequence
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from training.gradients.cpu_pass import BLOCK_VALUES, CHUNK_VALUES, add_rounded
from training.gradients.fixed_point import NUM_TALLIES, OUTSIDE, FixedPoint, add_by_operators

NUM_MICROBATCHES = 32
# For 32 microbatches, as the docstring of FixedPoint says.
RESOLUTION = 2.0**-41
LARGEST = 2.0**16
EXACT_FROM = 2.0**-18

in_range = st.floats(-LARGEST, LARGEST, width=32)
# The same number of values of every power of two from the smallest to the largest, where `in_range` likes the ends.
scaled = st.builds(math.ldexp, st.integers(2**23, 2**24 - 1), st.integers(-90, 16 - 24))
values = in_range | scaled | scaled.map(lambda value: -value)


def terms_of(num_values: int) -> st.SearchStrategy[list[list[float]]]:
    """The values of up to 32 microbatches."""
    return st.lists(st.lists(values, min_size=num_values, max_size=num_values), min_size=1, max_size=NUM_MICROBATCHES)


class Sum:
    """What one rank holds."""

    def __init__(
        self, num_values: int, num_microbatches: int = NUM_MICROBATCHES, fixed_point: FixedPoint | None = None
    ) -> None:
        self.total = torch.zeros(num_values, dtype=torch.int64)
        self.tallies = torch.zeros(NUM_TALLIES, dtype=torch.int64)
        self.largest = torch.zeros(())
        self._fixed_point = FixedPoint(num_microbatches) if fixed_point is None else fixed_point

    def add(self, term: Tensor | Sequence[float], loss_scale: float = 1.0) -> "Sum":
        scaled_term = torch.as_tensor(term, dtype=torch.float32) * loss_scale
        self._fixed_point.add_to(self.total, scaled_term, self.tallies, self.largest, loss_scale)
        self._fixed_point.count_outside(self.tallies, self.largest, loss_scale)
        return self

    def read(self, loss_scale: float = 1.0) -> Tensor:
        out = torch.empty(len(self.total))
        self._fixed_point.read(self.total, self.tallies, [out], loss_scale)
        return out


def sum_of(terms: Sequence[Sequence[float]], num_microbatches: int = NUM_MICROBATCHES) -> Sum:
    total = Sum(len(terms[0]), num_microbatches)
    for term in terms:
        total.add(term)
    return total


def bits(tensor: Tensor) -> list[int]:
    return tensor.view(torch.int32).tolist()


@settings(deadline=None)
@given(terms_of(3), st.randoms(use_true_random=False), st.integers(1, 8))
def test_the_sum_has_the_same_bits_in_every_order_and_on_every_number_of_ranks(
    terms: list[list[float]], chance: random.Random, num_ranks: int
) -> None:
    expected = sum_of(terms)
    ranks = [Sum(3) for _ in range(num_ranks)]
    for term in chance.sample(terms, len(terms)):
        chance.choice(ranks).add(term)
    together = Sum(3)
    for rank in chance.sample(ranks, num_ranks):
        together.total += rank.total
        together.tallies += rank.tallies
    assert bits(together.read()) == bits(expected.read())
    assert together.tallies.tolist() == expected.tallies.tolist()


@settings(deadline=None)
@given(terms_of(1))
def test_the_sum_is_as_close_to_the_true_one_as_the_docstring_says(terms: list[list[float]]) -> None:
    true = sum((Fraction(value) for (value,) in terms), Fraction())
    found = Fraction(sum_of(terms).read().item())
    before_rounding = len(terms) * Fraction(RESOLUTION) / 2
    assert abs(found - true) <= before_rounding + (abs(true) + before_rounding) / 2**24


def test_the_sum_of_a_million_gradients_is_as_close_to_the_float64_one() -> None:
    generator = torch.Generator().manual_seed(0)
    magnitudes = 10.0 ** (-12 + 14 * torch.rand(NUM_MICROBATCHES, 1 << 15, generator=generator))
    terms = magnitudes * torch.randn(NUM_MICROBATCHES, 1 << 15, generator=generator)
    total = Sum(1 << 15)
    for term in terms:
        total.add(term)
    true = terms.double().sum(dim=0)
    error = (total.read().double() - true).abs()
    before_rounding = NUM_MICROBATCHES * RESOLUTION / 2
    assert bool((error <= before_rounding + (true.abs() + before_rounding) * 2.0**-24).all())


@settings(deadline=None)
@given(st.lists(values.filter(lambda value: abs(value) >= EXACT_FROM), min_size=1, max_size=NUM_MICROBATCHES))
def test_values_above_a_small_one_are_not_rounded_at_all(numbers: list[float]) -> None:
    total = sum_of([[number] for number in numbers])
    assert total.total.item() * Fraction(RESOLUTION) == sum(map(Fraction, numbers))
    assert Sum(1).add(numbers[:1]).read().item() == numbers[0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3.4e38, -3.4e38, 1.00001 * LARGEST, -1.00001 * LARGEST])
def test_what_is_outside_the_range_is_counted_and_never_read_as_a_number(bad: float) -> None:
    total = Sum(3).add([1.0, 2.0, 3.0]).add([1.0, bad, 0.0]).add([4.0, -bad, 5.0])
    assert total.tallies.tolist() == [1, 0]
    assert total.read().isnan().all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, 2 * LARGEST])
def test_the_count_of_one_rank_is_seen_by_all(bad: float) -> None:
    well, ill = Sum(2).add([1.0, 2.0]), Sum(2).add([1.0, bad])
    well.total += ill.total
    well.tallies += ill.tallies
    assert well.read().isnan().all()


def test_the_ends_of_the_range_belong_to_it() -> None:
    total = Sum(2).add([LARGEST, -LARGEST])
    assert total.tallies.tolist() == [0, 0]
    assert total.read().tolist() == [LARGEST, -LARGEST]


def test_values_that_round_to_zero_are_counted_and_zeros_are_not() -> None:
    smallest_positive = 2.0**-149
    half = RESOLUTION / 2
    total = Sum(8).add([0.0, -0.0, half, -half, smallest_positive, half * 1.01, RESOLUTION, 1.0])
    assert total.tallies.tolist() == [0, 3]
    assert total.total.tolist() == [0, 0, 0, 0, 0, 1, 1, 2**41]


@settings(deadline=None)
@given(terms_of(2), st.integers(-10, 24))
def test_a_loss_scale_changes_no_bit(terms: list[list[float]], exponent: int) -> None:
    scale = 2.0**exponent
    terms = [[value if abs(value) > 2.0**-100 else 0.0 for value in term] for term in terms]
    plain, scaled_sum = sum_of(terms), Sum(2)
    for term in terms:
        scaled_sum.add(term, scale)
    assert torch.equal(scaled_sum.total, plain.total)
    assert torch.equal(scaled_sum.tallies, plain.tallies)
    assert bits(scaled_sum.read(scale) / scale) == bits(plain.read())


@pytest.mark.parametrize("num_microbatches", [1, 2, 3, 31, 32, 33, 1000, 1024, 1025])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_of_as_many_of_the_largest_terms_as_there_are_microbatches_does_not_wrap(
    num_microbatches: int, sign: int
) -> None:
    total = sum_of([[sign * LARGEST]] * num_microbatches, num_microbatches)
    assert total.tallies.tolist() == [0, 0]
    assert total.read().item() == sign * num_microbatches * LARGEST


def test_more_microbatches_cost_resolution_and_nothing_else() -> None:
    assert FixedPoint(NUM_MICROBATCHES).resolution == RESOLUTION
    exponents = {count: math.log2(FixedPoint(count).resolution) for count in (1, 2, 3, 4, 5, 1024)}
    assert exponents == {1: -46, 2: -45, 3: -44, 4: -44, 5: -43, 1024: -36}


@pytest.mark.parametrize("num_values", [3 * CHUNK_VALUES, CHUNK_VALUES + 5, 2 * BLOCK_VALUES, 7])
@pytest.mark.parametrize("share_of_zeros", [0.0, 0.4, 0.97, 1.0])
def test_the_pass_on_a_cpu_has_the_bits_of_torchs_operators(num_values: int, share_of_zeros: float) -> None:
    generator = torch.Generator().manual_seed(num_values)
    sums, tallies, largest = [], [], []
    blocks = -(-num_values // BLOCK_VALUES)
    kept = (torch.rand(blocks, generator=generator) >= share_of_zeros).repeat_interleave(BLOCK_VALUES)[:num_values]
    terms = [torch.randn(num_values, generator=generator) * kept * 10.0**-power for power in (2, 9, 14)]
    for is_by_operators in (True, False):
        total = torch.zeros(num_values, dtype=torch.int64)
        if not is_by_operators:
            total.fill_(77)  # what is there before the first term is of no account
        lost, most = torch.zeros(1, dtype=torch.int64), torch.zeros(())
        for place, term in enumerate(terms):
            if is_by_operators:
                add_by_operators(total, term.clone(), lost, most, 2.0**41)
            else:
                add_rounded(total, term.clone(), lost, most, 2.0**41, is_first=place == 0)
        sums.append(total)
        tallies.append(int(lost))
        largest.append(most)
    assert torch.equal(sums[0], sums[1])
    assert tallies[0] == tallies[1] and (tallies[0] > 0) == bool(kept.any())
    assert torch.equal(largest[0], largest[1])


@pytest.mark.parametrize("place", [0, CHUNK_VALUES - 1, CHUNK_VALUES, CHUNK_VALUES + 4])
def test_one_bad_value_is_found_in_any_chunk(place: int) -> None:
    term = torch.zeros(CHUNK_VALUES + 5)
    term[place] = math.nan
    assert Sum(len(term)).add(term).tallies.tolist() == [1, 0]


# Every gradient whose sum over all microbatches is finite in fp32.
wide = st.builds(math.ldexp, st.integers(2**23, 2**24 - 1), st.integers(-90, 127 - 24 - 5)) | values


def widened_for(terms: Sequence[Sequence[float]], loss_scale: float = 1.0) -> FixedPoint:
    largest = loss_scale * max(abs(value) for term in terms for value in term)
    wider = FixedPoint(NUM_MICROBATCHES).widened(largest, loss_scale)
    assert wider is not None
    return wider


@settings(deadline=None)
@given(st.lists(st.lists(wide | wide.map(lambda value: -value), min_size=2, max_size=2), min_size=1, max_size=32))
def test_in_a_wider_range_the_sum_is_as_close_to_the_true_one_as_the_docstring_says(terms: list[list[float]]) -> None:
    wider = widened_for(terms)
    total = Sum(2, fixed_point=wider)
    for term in terms:
        total.add(term)
    assert total.tallies[OUTSIDE] == 0
    largest = max(abs(value) for term in terms for value in term)
    for place, found in enumerate(total.read().tolist()):
        true = sum((Fraction(term[place]) for term in terms), Fraction())
        before_rounding = len(terms) * Fraction(wider.resolution) / 2
        assert before_rounding <= max(len(terms) * Fraction(RESOLUTION) / 2, Fraction(largest) / 2**51)
        assert abs(Fraction(found) - true) <= before_rounding + (abs(true) + before_rounding) / 2**24


def test_a_range_is_never_narrower_than_the_usual_one_and_holds_powers_of_two() -> None:
    usual = FixedPoint(NUM_MICROBATCHES)
    for largest, range_bits in ((0.0, 16), (1.0, 16), (LARGEST / 2, 16), (LARGEST, 17), (2 * LARGEST, 18), (1e30, 100)):
        wider = usual.widened(largest)
        assert wider is not None and wider.largest == 2.0**range_bits
        assert Sum(1, fixed_point=wider).add([largest]).tallies[OUTSIDE] == 0


@pytest.mark.parametrize("largest", [math.inf, math.nan, 3.4e38, 2.0**122])
def test_what_might_not_be_finite_as_a_sum_has_no_range(largest: float) -> None:
    assert FixedPoint(NUM_MICROBATCHES).widened(largest) is None
    assert FixedPoint(NUM_MICROBATCHES).widened(2.0**121) is not None


def test_a_wider_range_does_not_depend_on_the_loss_scale() -> None:
    terms = [[3e7, 1.0], [-1e6, 0.25]]
    found = []
    for scale in (1.0, 2.0**16, 2.0**-5):
        total = Sum(2, fixed_point=widened_for(terms, scale))
        for term in terms:
            total.add(term, scale)
        found.append(bits(total.read(scale) / scale))
    assert found[1:] == found[:1] * 2
