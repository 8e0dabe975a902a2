"""Samples of microbatches in groups: no sample lost, as little padding as asked for, and the same model."""

import re
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from storage.datasets import DatasetManifest
from tasks.config.load import load_configuration
from tasks.corpora import policy, quality
from tests.helpers.microbatches import microbatch_with
from tests.helpers.small_models import make_encoder
from training.batches.groups import FEW_SAMPLES, Group, group_samples
from training.batches.tensors import Microbatch
from training.data.samples import Samples
from training.model_configuration import EncoderConfig
from training.models.encoder.network import Classifier
from training.models.source import microbatch_cut

CONFIGS = Path(__file__).parents[3] / "deployments/configs"
MODEL = EncoderConfig(width=16, layers=2, heads=2, feedforward=32, dropout=0.0)
BLOCKS = 6  # of 2,048 rows of a corpus

batches_of_microbatches = st.lists(
    st.lists(st.integers(0, 2048), min_size=1, max_size=40).map(lambda lengths: np.array(sorted(lengths))),
    min_size=1,
    max_size=6,
)
efficiencies = st.sampled_from([0.5, 0.9, 0.97, 1.0])


def real(microbatches: list[NDArray[np.int64]]) -> int:
    """Tokens of a batch without padding; a sample without any has one of padding, which it cannot do without."""
    return sum(int(np.maximum(1, lengths).sum()) for lengths in microbatches)


def computed(groups: list[tuple[Group, ...]]) -> int:
    return sum(group.num_tokens for of_microbatch in groups for group in of_microbatch)


@settings(deadline=None)
@given(batches_of_microbatches, efficiencies)
def test_every_sample_is_in_one_group_that_is_as_long_as_its_longest(
    microbatches: list[NDArray[np.int64]], efficiency: float
) -> None:
    for lengths, groups in zip(microbatches, group_samples(microbatches, efficiency), strict=True):
        assert sum(group.num_samples for group in groups) == len(lengths)
        ends = np.cumsum([group.num_samples for group in groups])
        assert [group.length for group in groups] == np.maximum(1, lengths)[ends - 1].tolist()


@settings(deadline=None)
@given(batches_of_microbatches, efficiencies)
def test_whatever_efficiency_is_asked_for_is_reached_in_every_batch(
    microbatches: list[NDArray[np.int64]], efficiency: float
) -> None:
    assert real(microbatches) >= efficiency * computed(group_samples(microbatches, efficiency)) - 1e-6


@settings(deadline=None)
@given(batches_of_microbatches)
def test_more_efficiency_only_parts_groups_further(microbatches: list[NDArray[np.int64]]) -> None:
    few, many = group_samples(microbatches, 0.9), group_samples(microbatches, 0.97)
    for coarse, fine in zip(few, many, strict=True):
        assert set(np.cumsum([g.num_samples for g in coarse])) <= set(np.cumsum([g.num_samples for g in fine]))


def part_one_by_one(microbatches: list[NDArray[np.int64]], efficiency: float) -> list[tuple[Group, ...]]:
    """The same groups, written to be read: of all partings of all groups the one that saves most, again and again."""
    padded = [np.maximum(1, lengths).tolist() for lengths in microbatches]
    ends = [[0, len(lengths)] for lengths in padded]

    def found() -> list[tuple[Group, ...]]:
        return [
            tuple(Group(end - start, lengths[end - 1]) for start, end in pairwise(of_microbatch))
            for lengths, of_microbatch in zip(padded, ends, strict=True)
        ]

    while computed(found()) > real(microbatches) / efficiency:
        partings = [
            ((place - start) * (lengths[end - 1] - lengths[place - 1]), -microbatch, -place)
            for microbatch, lengths in enumerate(padded)
            for start, end in pairwise(ends[microbatch])
            for place in range(start + 1, end)
        ]
        _, microbatch, place = max(partings)
        ends[-microbatch] = sorted([*ends[-microbatch], -place])
    return found()


@settings(deadline=None)
@given(batches_of_microbatches, efficiencies, st.sampled_from([0, 8, FEW_SAMPLES]))
def test_the_groups_are_those_that_parting_one_by_one_gives(
    microbatches: list[NDArray[np.int64]], efficiency: float, few: int
) -> None:
    """However few samples are left to NumPy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.batches.groups.FEW_SAMPLES", few)
        assert group_samples(microbatches, efficiency) == part_one_by_one(microbatches, efficiency)


def test_no_group_is_made_where_nothing_is_gained() -> None:
    assert group_samples([np.full(9, 7), np.array([100, 100])], 1.0) == [(Group(9, 7),), (Group(2, 100),)]


def test_one_outlier_alone_is_parted_from_the_others() -> None:
    assert group_samples([np.array([10, 10, 10, 2000])], 0.97) == [(Group(3, 10), Group(1, 2000))]


def test_close_to_as_few_groups_are_made_as_can_be() -> None:
    """Compared with the best of all ways, for microbatches that are small enough to try them."""
    chance = np.random.Generator(np.random.Philox(key=3))
    found = fewest = 0
    for _ in range(30):
        lengths = np.sort(np.rint(chance.lognormal(np.log(250), 0.8, 9)).astype(np.int64))
        found += len(group_samples([lengths], 0.97)[0])
        fewest += fewest_groups(lengths, 0.97)
    assert found <= 1.05 * fewest


def fewest_groups(lengths: NDArray[np.int64], efficiency: float) -> int:
    def num_tokens(parting: int) -> int:
        ends = [i + 1 for i in range(len(lengths) - 1) if parting >> i & 1] + [len(lengths)]
        return sum(int(lengths[end - 1]) * (end - start) for start, end in zip([0, *ends], ends, strict=False))

    fits = (n for n in range(2 ** (len(lengths) - 1)) if num_tokens(n) * efficiency <= lengths.sum())
    return 1 + min(n.bit_count() for n in fits)


@cache
def corpus_lengths(job: str) -> NDArray[np.int64]:
    """Tokens of each row of a corpus; of raw text, words and punctuation, which is about what a tokenizer makes."""
    if job == "quality":
        masks = [quality.draw_block(0, block, 2048)["attention_mask"] for block in range(BLOCKS)]
        return np.array([sum(mask) for column in masks for mask in column.to_pylist()])
    texts = [policy.draw_block(0, block, 2048)["prompt_text"] for block in range(BLOCKS)]
    filled = [text for column in texts for text in pc.fill_null(column, "").to_pylist()]
    return np.array([len(re.findall(r"\w+|[^\w\s]", text)) for text in filled])


@pytest.mark.parametrize("job", ["policy", "quality"])
@pytest.mark.parametrize(("batch_size", "num_microbatches"), [(None, None), (64, 4), (16, 4), (512, 8)])
def test_the_microbatches_of_both_jobs_are_filled_to_97_percent(
    job: str, batch_size: int | None, num_microbatches: int | None
) -> None:
    """With their configurations as they are, and with others. In each batch, and not only on average."""
    config = load_configuration(CONFIGS / f"{job}.toml")
    assert "padding_efficiency" not in config.train.model_fields_set  # the default is what is looked at here
    size, number = batch_size or config.train.batch_size, num_microbatches or config.train.microbatches
    cut, lengths = microbatch_cut(config.model, config.train), corpus_lengths(job)
    num_groups = []
    for start in range(0, len(lengths) - size, size):
        batch = lengths[start : start + size]
        microbatches = [batch[microbatch] for microbatch in cut.cut(batch, number)]
        groups = cut.groups(microbatches)
        assert batch.sum() >= 0.97 * computed(groups)
        num_groups += [len(of_microbatch) for of_microbatch in groups]
    # So many calls of attention in place of one: where microbatches are small parts of a batch, hardly more than one.
    assert np.mean(num_groups) <= (1.5 if size / number <= 16 and number >= 32 else 5.5)


def gradients_of(model: Classifier, microbatch: Microbatch) -> list[Tensor]:
    """Of a weighted sum over samples, as the loss is one."""
    model.zero_grad()
    double = replace(microbatch, numeric=microbatch.numeric.double())
    weights = torch.arange(1.0, len(microbatch.rows) + 1, dtype=torch.float64)
    losses = torch.nn.functional.cross_entropy(model(double), microbatch.labels, reduction="none")
    (losses * weights).sum().backward()  # type: ignore[no-untyped-call]
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_microbatch_in_groups_has_the_gradient_of_the_same_microbatch_in_one(
    dataset: DatasetManifest, samples: Samples, checkpointing: bool
) -> None:
    """In double precision: what is left is rounding."""
    torch.manual_seed(0)
    model = make_encoder(MODEL, dataset, checkpointing).double()
    expected = gradients_of(model, microbatch_with(samples, 0.0))
    for efficiency, least_groups in ((0.01, 1), (0.97, 3), (1.0, 4)):
        microbatch = microbatch_with(samples, efficiency)
        assert microbatch.is_flat and len(microbatch.groups) >= least_groups
        found = gradients_of(model, microbatch)
        assert len(found) == len(expected) == len(list(model.parameters()))
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


def test_the_same_microbatch_in_groups_draws_the_same_dropout_again(dataset: DatasetManifest, samples: Samples) -> None:
    model = make_encoder(MODEL.model_copy(update={"dropout": 0.3}), dataset)
    microbatch, logits = microbatch_with(samples, 0.97), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        logits.append(model(microbatch))
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


def test_what_stands_in_the_padding_of_a_group_reaches_no_logit(dataset: DatasetManifest, samples: Samples) -> None:
    model = make_encoder(MODEL, dataset).eval()
    microbatch = microbatch_with(samples, 0.5)
    lengths = torch.split(microbatch.lengths, [group.num_samples for group in microbatch.groups])
    is_real = torch.cat([
        (torch.arange(group.length) < of_group[:, None]).flatten()
        for group, of_group in zip(microbatch.groups, lengths, strict=True)
    ])  # fmt: skip
    assert not is_real.all()
    assert torch.equal(model(microbatch), model(replace(microbatch, tokens=torch.where(is_real, microbatch.tokens, 7))))
