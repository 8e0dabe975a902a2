"""Metrics per slice: what a slice holds, which values share one, and that each has the numbers of its samples alone."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from storage.datasets import CategoricalColumn, Target
from storage.runs.metric_values import metric_value
from training.metrics.scores import score
from training.metrics.slices import score_slices
from training.targets.registry import kind_of
from training.validation_configuration import SLICE_MAX_VALUES, SLICE_MIN_SAMPLES

COUNTRIES = ["DE", "FR", "IT", "MT", "VA"]


def scored(codes: Tensor, vocabulary: list[str], logits: Tensor | None = None, kind: str = "binary") -> dict[str, Any]:
    column = CategoricalColumn(name="country", vocabulary=vocabulary, missing_share=0.0)
    target = kind_of(Target(kind=kind, column="label", classes=["no", "yes"], class_counts=[1, 1]))
    drawn = torch.randn(len(codes), target.num_outputs, generator=torch.Generator().manual_seed(1))
    return score_slices(drawn if logits is None else logits, _labels(len(codes)), codes, column, target)


def _labels(number: int) -> Tensor:
    return torch.arange(number) % 2


def coded(*counts: int) -> Tensor:
    """So many samples of each code, mixed."""
    codes = torch.cat([torch.full((count,), code) for code, count in enumerate(counts)])
    return codes[torch.randperm(len(codes), generator=torch.Generator().manual_seed(2))]


def test_each_value_has_the_metrics_of_its_samples_the_largest_first_and_rare_ones_are_together() -> None:
    codes = coded(30, 0, 25, 70, 20, SLICE_MIN_SAMPLES - 1, 3)
    found = scored(codes, COUNTRIES)
    names = [(one["group"], one["value"], one["num_values"], one["num_samples"]) for one in found["slices"]]
    assert found["column"] == "country"
    assert names == [
        ("value", "FR", 1, 70), ("missing", None, 1, 30), ("value", "DE", 1, 25), ("value", "IT", 1, 20),
        ("rare", None, 2, 22),
    ]  # fmt: skip
    logits = torch.randn(len(codes), 1, generator=torch.Generator().manual_seed(1))
    kind = kind_of(Target(kind="binary", column="label", classes=["no", "yes"], class_counts=[1, 1]))
    for one, chosen in zip(found["slices"], [codes == 3, codes == 0, codes == 2, codes == 4, codes > 4], strict=True):
        expected = score(logits[chosen], _labels(len(codes))[chosen], kind)
        assert one["metrics"] == {name: metric_value(number) for name, number in expected.items()}


def test_one_rare_value_keeps_its_name_and_a_value_that_training_has_not_is_said_to_be_so() -> None:
    found = scored(coded(0, 2, 40), COUNTRIES)["slices"]
    assert [(one["group"], one["num_samples"]) for one in found] == [("value", 40), ("unseen", 2)]


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_of_very_many_values_the_most_frequent_ones_have_slices(kind: str) -> None:
    many = SLICE_MAX_VALUES + 7
    found = scored(coded(0, 0, *[SLICE_MIN_SAMPLES] * many), [str(i) for i in range(many)], kind=kind)["slices"]
    assert len(found) == SLICE_MAX_VALUES + 1 and found[-1]["num_values"] == 7
    assert [one["value"] for one in found[:3]] == ["0", "1", "2"]  # of equally frequent ones in the vocabulary's order
    assert sum(one["num_samples"] for one in found) == many * SLICE_MIN_SAMPLES


def test_a_prediction_that_is_no_number_is_one_of_its_slice_alone_and_an_empty_split_has_none() -> None:
    codes, logits = coded(0, 0, 30, 30), torch.zeros(60, 1)
    logits[int((codes == 3).nonzero()[0])] = math.nan
    sound, broken = scored(codes, COUNTRIES, logits)["slices"]
    assert set(broken["metrics"].values()) == {"nan"} and "nan" not in sound["metrics"].values()
    assert scored(torch.empty(0, dtype=torch.int64), COUNTRIES)["slices"] == []
