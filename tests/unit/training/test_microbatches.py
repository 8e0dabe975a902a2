"""How batches are cut into microbatches: no sample lost or twice, and close to the lowest possible cost."""

import random
from bisect import bisect_left
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from training.batches.groups import Group
from training.batches.microbatches import MicrobatchCut
from training.configuration import TrainConfig
from training.data.samples import padded_length
from training.model_configuration import EncoderConfig
from training.models.source import microbatch_cut
from training.rank_shares import assign

CUT = MicrobatchCut(dense_length=768)

all_lengths = st.lists(st.integers(0, 2048), min_size=1, max_size=80)
few_lengths = st.lists(st.integers(0, 90), min_size=1, max_size=6)


def cut(lengths: list[int], num_microbatches: int, cutter: MicrobatchCut = CUT) -> list[NDArray[np.int64]]:
    return cutter.cut(np.array(lengths, dtype=np.int64), num_microbatches)


def costs_of(microbatches: list[NDArray[np.int64]], lengths: list[int], cutter: MicrobatchCut = CUT) -> list[int]:
    return [
        cutter.cost(groups) for groups in cutter.groups([np.array(lengths)[microbatch] for microbatch in microbatches])
    ]


def least_cost_of_the_costliest_microbatch(lengths: list[int], num_microbatches: int, cutter: MicrobatchCut) -> int:
    """Over all ways of assigning samples to at most so many microbatches."""
    costliest = []
    for places in product(range(num_microbatches), repeat=len(lengths)):
        microbatches = [
            [n for n, place in zip(lengths, places, strict=True) if place == microbatch]
            for microbatch in range(num_microbatches)
        ]
        costliest.append(
            max(
                cutter.cost([Group(len(microbatch), padded_length(max(microbatch)))])
                for microbatch in microbatches
                if microbatch
            )
        )
    return min(costliest)


@settings(deadline=None)
@given(all_lengths, st.integers(1, 80))
def test_every_sample_is_in_one_microbatch_and_no_microbatch_is_empty(
    lengths: list[int], num_microbatches: int
) -> None:
    microbatches = cut(lengths, num_microbatches)
    assert sorted(np.concatenate(microbatches).tolist()) == list(range(len(lengths)))
    assert len(microbatches) == min(num_microbatches, len(lengths))
    assert all(len(microbatch) for microbatch in microbatches)


@settings(deadline=None)
@given(all_lengths, st.integers(1, 80))
def test_neighbours_in_length_stand_together_the_shortest_first(lengths: list[int], num_microbatches: int) -> None:
    in_order = [lengths[place] for microbatch in cut(lengths, num_microbatches) for place in microbatch.tolist()]
    assert in_order == sorted(lengths)


@settings(deadline=None)
@given(few_lengths, st.integers(1, 3), st.sampled_from([1, 64, 10_000]))
def test_no_way_of_cutting_makes_the_costliest_microbatch_cheaper(
    lengths: list[int], num_microbatches: int, dense_length: int
) -> None:
    cutter = MicrobatchCut(dense_length)
    found = max(costs_of(cut(lengths, num_microbatches, cutter), lengths, cutter))
    assert found == least_cost_of_the_costliest_microbatch(lengths, num_microbatches, cutter)


def cut_by_trying_all_budgets(lengths: list[int], num_microbatches: int, dense_length: int) -> list[list[int]]:
    """The same cut, written to be read: halving between bounds; the costliest one is parted while there are too few."""
    order = np.argsort(lengths, kind="stable")[::-1].tolist()
    padded = [padded_length(lengths[place]) for place in order]
    costs = [length * (dense_length + length) for length in padded]
    num_microbatches = min(num_microbatches, len(costs))

    def fill(budget: int) -> list[int]:
        ends = [0]
        while ends[-1] < len(costs):
            ends.append(min(len(costs), ends[-1] + budget // costs[ends[-1]]))
        return ends

    budgets = range(costs[0], costs[0] * len(costs) + 1)
    ends = fill(budgets[bisect_left(budgets, True, key=lambda budget: len(fill(budget)) <= num_microbatches + 1)])
    while len(ends) <= num_microbatches:
        spans = [(start, end) for start, end in pairwise(ends) if end - start > 1]
        start, end = max(spans, key=lambda span: ((span[1] - span[0]) * costs[span[0]], -span[0]))
        ends = sorted([*ends, (start + end) // 2])
    return [order[start:end][::-1] for start, end in pairwise(ends)][::-1]


@settings(deadline=None)
@given(st.one_of(all_lengths, few_lengths), st.integers(1, 80), st.sampled_from([0, 1, 12, 768, 3072]))
def test_the_cut_is_the_one_that_trying_all_budgets_finds(
    lengths: list[int], num_microbatches: int, dense_length: int
) -> None:
    found = [microbatch.tolist() for microbatch in cut(lengths, num_microbatches, MicrobatchCut(dense_length))]
    assert found == cut_by_trying_all_budgets(lengths, num_microbatches, dense_length)


@pytest.mark.parametrize("num_microbatches", [1, 4, 32, 100])
def test_so_it_is_for_whole_batches(num_microbatches: int) -> None:
    for seed in range(10):
        lengths = log_normal_lengths(512, seed)
        found = [microbatch.tolist() for microbatch in cut(lengths, num_microbatches)]
        assert found == cut_by_trying_all_budgets(lengths, num_microbatches, CUT.dense_length)


@settings(deadline=None)
@given(st.sets(st.integers(0, 2048), min_size=1, max_size=60), st.integers(1, 60), st.randoms(use_true_random=False))
def test_a_shuffled_batch_has_the_same_microbatches(
    distinct: set[int], num_microbatches: int, chance: random.Random
) -> None:
    lengths = np.array(sorted(distinct), dtype=np.int64)
    order = np.array(chance.sample(range(len(lengths)), len(lengths)))
    for microbatch, shuffled in zip(
        CUT.cut(lengths, num_microbatches), CUT.cut(lengths[order], num_microbatches), strict=True
    ):
        assert order[shuffled].tolist() == microbatch.tolist()


@pytest.mark.parametrize("length", [0, 1, 8, 9, 2048])
@pytest.mark.parametrize("num_microbatches", [1, 5, 32])
def test_texts_of_one_length_are_cut_into_microbatches_of_about_one_size(length: int, num_microbatches: int) -> None:
    sizes = [len(microbatch) for microbatch in cut([length] * 32, num_microbatches)]
    assert sum(sizes) == 32
    assert len(sizes) == num_microbatches
    assert max(sizes) == -(-32 // num_microbatches)


def test_as_many_microbatches_as_samples_are_single_samples() -> None:
    lengths = [5, 0, 300, 17, 5, 2048, 1]
    assert [microbatch.tolist() for microbatch in cut(lengths, 7)] == [[1], [6], [0], [4], [3], [2], [5]]


def test_a_microbatch_is_padded_to_a_multiple_and_never_to_nothing() -> None:
    assert [padded_length(longest) for longest in (0, 1, 8, 9, 2047, 2048)] == [8, 8, 8, 16, 2048, 2048]


def test_attention_costs_as_much_as_the_dense_layers_where_the_docstring_says() -> None:
    model = EncoderConfig(width=96, feedforward=256)
    length = microbatch_cut(model, TrainConfig()).dense_length
    dense = 4 * model.width**2 + 2 * model.width * model.feedforward
    assert dense == 2 * model.width * length


def log_normal_lengths(count: int, seed: int) -> list[int]:
    """Median 250 tokens, as documents have, none longer than 2,048."""
    drawn = np.random.Generator(np.random.Philox(key=seed)).lognormal(np.log(250), 0.8, count)
    lengths: list[int] = np.clip(drawn.round(), 1, 2048).astype(int).tolist()
    return lengths


def test_nine_of_ten_computed_tokens_are_real_on_log_normal_lengths() -> None:
    """Of 512 samples in 32 microbatches; of any batch, and not only on average."""
    for seed in range(20):
        lengths = log_normal_lengths(512, seed)
        microbatches = cut(lengths, 32)
        computed = sum(
            len(microbatch) * padded_length(max(lengths[place] for place in microbatch.tolist()))
            for microbatch in microbatches
        )
        assert sum(lengths) >= 0.90 * computed


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_ranks_finish_together_on_log_normal_lengths(num_ranks: int) -> None:
    lengths = log_normal_lengths(512, seed=1)
    costs = costs_of(cut(lengths, 32), lengths)
    loads = [sum(costs[microbatch] for microbatch in microbatches) for microbatches in assign(costs, num_ranks)]
    assert max(loads) <= 1.05 * sum(loads) / num_ranks
